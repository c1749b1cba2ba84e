#include "server/layout/exchange_plan.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/canonical_tree.h"

namespace ballast::layout {
namespace {

constexpr uint64_t kScaleBytes = 4;

}  // namespace

uint64_t PayloadOf(const CodecChoice& choice, kernels::DType unquantized,
                   int64_t count) {
  if (!choice.quantizes()) return count * kernels::SizeOf(unquantized);
  const int64_t per_byte = 8 / choice.block.bits;
  return (count + per_byte - 1) / per_byte +
         kScaleBytes * kernels::NumBlocks(choice.block, count);
}

ExchangePlan::ExchangePlan(const ExchangePolicy& policy, const Layout& layout)
    : policy_(policy) {
  const bool has_peers = layout.topology().num_nodes > 1;
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    const int64_t size = layout.places()[i].num_elements;
    const TensorCodecs& codecs =
        codecs_.emplace_back(CodecsOf(policy, layout.tensors()[i].name, size));
    const bool crosses = has_peers && layout.tensors()[i].trainable && size > 0;
    for (const Path path : kPaths) {
      const auto p = static_cast<size_t>(path);
      const bool quantizes = crosses && codecs.on(path).quantizes();
      metered_index_[p].push_back(
          quantizes ? static_cast<int>(metered_[p].size()) : -1);
      if (quantizes) metered_[p].emplace_back(static_cast<int32_t>(i));
    }
  }
  policy_codecs_ = codecs_;
  quantizes_weights_ = !metered(Path::kWeights).empty();
  quantizes_gradients_ = !metered(Path::kGradients).empty();
}

absl::Status ExchangePlan::Apply(const CodecChange& change) {
  const auto path = static_cast<size_t>(change.path);
  const int index = change.tensor.value();
  if (path >= kNumPaths || index < 0 ||
      index >= static_cast<int>(codecs_.size()) ||
      MeteredIndex(change.path, change.tensor) < 0) {
    return absl::DataLossError(
        absl::StrCat("another codec for tensor ", index, " on path ", path,
                     ", which the policy does not quantize there"));
  }
  const CodecChoice& policy = policy_codecs_[index].on(change.path);
  if (change.codec > policy.codec) {
    return absl::DataLossError(absl::StrCat(
        "codec ", static_cast<int>(change.codec), " for tensor ", index,
        " is narrower than the policy's, ", std::string(Name(policy.codec))));
  }
  CodecChoice& choice = codecs_[index].on(change.path);
  if (choice.codec != policy.codec) --num_wider_[path];
  choice = policy.With(change.codec);
  if (choice.codec != policy.codec) ++num_wider_[path];
  return absl::OkStatus();
}

std::optional<CodecChoice> ExchangePlan::NarrowerChoice(Path path,
                                                        TensorId tensor) const {
  const CodecChoice& choice = codecs(tensor).on(path);
  const CodecChoice& policy = policy_codecs(tensor).on(path);
  if (choice.codec == policy.codec) return std::nullopt;
  return policy.With(Narrower(choice.codec));
}

MeterWindow ExchangePlan::MeteredIn(Path path, Step step) const {
  if (policy_.metered_one_in == 0) return {};
  return WindowOf(static_cast<int>(metered(path).size()), step);
}

PayloadBytes ExchangePlan::Model(const Layout& layout) const {
  PayloadBytes bytes;
  for (size_t i = 0; i < codecs_.size(); ++i) {
    if (!layout.tensors()[i].trainable) continue;
    const int64_t size = layout.places()[i].num_elements;
    bytes.gradients +=
        PayloadOf(codecs_[i].gradients, kernels::DType::kFloat32, size);
    bytes.weights +=
        PayloadOf(codecs_[i].weights, layout.tensors()[i].dtype, size);
  }
  return bytes;
}

PayloadBytes ExchangePlan::PerStep(const Layout& layout, NodeRank node) const {
  PayloadBytes bytes;
  const Topology& topology = layout.topology();
  // Unquantized sums cross as the maximal subtrees inside the node's ranks.
  const uint64_t num_sums =
      quantizes_gradients_
          ? 1
          : kernels::MaximalSubtrees(
                {topology.FirstRank(node).value(), topology.local_world_size},
                topology.world_size())
                .size();
  for (const Bucket& bucket : layout.buckets()) {
    for (const Shard& shard : bucket.shards) {
      for (const Piece& piece : shard.pieces) {
        const TensorCodecs& codecs = codecs_[piece.tensor.value()];
        if (shard.owner != node) {
          bytes.gradients +=
              num_sums * PayloadOf(codecs.gradients, kernels::DType::kFloat32,
                                   piece.size());
        } else {
          bytes.weights +=
              (topology.num_nodes - 1) *
              PayloadOf(codecs.weights, layout.tensor(piece.tensor).dtype,
                        piece.size());
        }
      }
    }
  }
  return bytes;
}

}  // namespace ballast::layout
