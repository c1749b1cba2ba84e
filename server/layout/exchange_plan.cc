#include "server/layout/exchange_plan.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/canonical_tree.h"
#include "server/layout/codec_table.h"

namespace ballast::layout {
namespace {

// A partition group of all nodes is none.
ExchangePolicy OnNodes(ExchangePolicy policy, const Topology& topology) {
  policy.partition_nodes = topology.partition_nodes;
  return policy;
}

}  // namespace

uint64_t PayloadOf(const CodecChoice& choice, kernels::DType unquantized,
                   int64_t count) {
  return FindCodec(choice.codec)->payload(choice.block, unquantized, count);
}

ExchangePlan::ExchangePlan(const ExchangePolicy& policy, const Layout& layout)
    : policy_(OnNodes(policy, layout.topology())) {
  const Topology& topology = layout.topology();
  // Gradients cross between all nodes, weights within a partition group.
  const auto has_peers = [&topology](Path path) {
    return (path == Path::kGradients ? topology.num_nodes
                                     : topology.num_owners()) > 1;
  };
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    const int64_t size = layout.places()[i].num_elements;
    const TensorCodecs& codecs =
        codecs_.emplace_back(CodecsOf(policy, layout.tensors()[i].name, size));
    const bool is_trained = layout.tensors()[i].trainable && size > 0;
    for (const Path path : kPaths) {
      const auto p = static_cast<size_t>(path);
      const bool quantizes =
          is_trained && has_peers(path) && codecs.on(path).quantizes();
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
  if (FindCodec(change.codec) == nullptr ||
      IsNarrower(change.codec, policy.codec)) {
    return absl::DataLossError(
        absl::StrCat("codec ", static_cast<int>(change.codec), " for tensor ",
                     index, " is unknown, or narrower than the policy's, ",
                     std::string(Name(policy.codec))));
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
  const NodeRank self = topology.OwnerOf(node);
  // Unquantized sums cross as the maximal subtrees inside the ranks of a node,
  // or of a partition group.
  const auto sums_of = [&](NodeRank first, int num_nodes) -> uint64_t {
    if (quantizes_gradients_) return 1;
    return kernels::MaximalSubtrees({topology.FirstRank(first).value(),
                                     num_nodes * topology.local_world_size},
                                    topology.world_size())
        .size();
  };
  const uint64_t num_sums = sums_of(node, 1);
  const uint64_t across_groups =
      (topology.num_groups() - 1) *
      sums_of(topology.NodeAt(topology.GroupOf(node), NodeRank(0)),
              topology.num_owners());
  for (const Bucket& bucket : layout.buckets()) {
    for (const Shard& shard : bucket.shards) {
      for (const Piece& piece : shard.pieces) {
        const TensorCodecs& codecs = codecs_[piece.tensor.value()];
        const uint64_t gradients =
            PayloadOf(codecs.gradients, kernels::DType::kFloat32, piece.size());
        if (shard.owner != self) {
          bytes.gradients += num_sums * gradients;
        } else {
          bytes.gradients += across_groups * gradients;
          bytes.weights +=
              (topology.num_owners() - 1) *
              PayloadOf(codecs.weights, layout.tensor(piece.tensor).dtype,
                        piece.size());
        }
      }
    }
  }
  return bytes;
}

}  // namespace ballast::layout
