// One node's state in a test: its arrays hold a function of (kind, tensor,
// element, version), so that any copy of them can be told from any other.
#ifndef SERVER_SNAPSHOT_SNAPSHOT_RIG_H_
#define SERVER_SNAPSHOT_SNAPSHOT_RIG_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/hyper_parameters.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/device/host/host_device.h"
#include "server/layout/gather_units.h"
#include "server/layout/layout.h"
#include "server/optimizer/shard_state.h"
#include "server/snapshot/capture.h"
#include "server/snapshot/files/manifest.h"
#include "server/snapshot/files/section_name.h"
#include "server/snapshot/shard_plan.h"
#include "server/snapshot/weight_places.h"

namespace ballast::snapshot {

inline float StateValue(Kind kind, int tensor, int64_t element,
                        int64_t version) {
  // Exact in fp32, and no two of them alike in a test.
  return static_cast<float>((element * 4 + static_cast<int>(kind)) % 65521 *
                                64 +
                            tensor * 8 + version % 8);
}

// Two cells and more, one element, none, two dtypes, one frozen.
inline std::vector<layout::TensorSpec> RigTensors() {
  return {{.name = "wte", .shape = {5, 2000}},
          {.name = "scalar", .shape = {}},
          {.name = "none", .shape = {0, 3}},
          {.name = "mlp",
           .shape = {6001},
           .dtype = kernels::DType::kBFloat16,
           .group = 1},
          {.name = "frozen", .shape = {3000}, .trainable = false},
          {.name = "bias", .shape = {7}, .dtype = kernels::DType::kFloat16}};
}

class SnapshotRig {
 public:
  SnapshotRig(int num_nodes, int workers, int node, base::Executor* executor,
              uint64_t bucket_bytes = 16 << 10, bool has_published = false,
              int partition_nodes = 0, bool gathers_weights = false)
      : layout_(*layout::Layout::Create(
            RigTensors(), {num_nodes, workers, partition_nodes}, 2,
            {.bucket_bytes = bucket_bytes, .chunk_bytes = 8 << 10})),
        node_(node),
        device_({}, executor),
        state_(*optimizer::ShardState::Create(
            &device_, layout_, node_, kernels::OptimizerKind::kAdamW, false)),
        weights_(layout_.weights_bytes()),
        has_published_(has_published),
        gathers_weights_(gathers_weights) {}

  // All that this node owns, and the whole segment of weights.
  void Fill(int64_t version) {
    for (const layout::Bucket& bucket : layout_.buckets()) {
      for (const auto& chunk : layout_.shard(bucket.id, node_).chunks) {
        FillChunk(chunk, version);
      }
    }
    for (size_t t = 0; t < layout_.tensors().size(); ++t) {
      FillWeights(static_cast<int>(t), 0, layout_.places()[t].num_elements,
                  version);
    }
  }

  void FillChunk(const layout::Chunk& chunk, int64_t version) {
    for (const layout::Piece& piece : chunk.pieces) {
      const int t = piece.tensor.value();
      for (int64_t i = 0; i < piece.size(); ++i) {
        const auto value = [&](Kind kind) {
          return StateValue(kind, t, piece.begin + i, version);
        };
        state_->master()[piece.state_offset + i] = value(Kind::kMaster);
        state_->moment(0)[piece.state_offset + i] = value(Kind::kM);
        state_->moment(1)[piece.state_offset + i] = value(Kind::kV);
      }
      FillWeights(t, piece.begin, piece.end, version);
    }
  }

  // The bits need not be those of a cast.
  void FillWeights(int tensor, int64_t begin, int64_t end, int64_t version) {
    for (int64_t i = begin; i < end; ++i) {
      const float value = StateValue(Kind::kPublished, tensor, i, version);
      const int size = kernels::SizeOf(layout_.tensors()[tensor].dtype);
      std::memcpy(
          weights_.data() + layout_.places()[tensor].weight_offset + i * size,
          reinterpret_cast<const char*>(&value) + 4 - size, size);
    }
  }

  optimizer::Scalars ScalarsOf(int64_t version) const {
    optimizer::Scalars scalars;
    scalars.generation = Generation(1);
    scalars.step = Step(version);
    scalars.optimizer_step = version;
    scalars.groups = {{.lr = 0.5 + static_cast<double>(version)}, {.lr = 0.25}};
    const int first = layout_.topology().FirstRank(node_).value();
    for (int l = 0; l < layout_.topology().local_world_size; ++l) {
      scalars.cursors.push_back(
          absl::StrCat("rank ", first + l, " at ", version));
    }
    return scalars;
  }

  Manifest MakeManifest() const {
    Manifest manifest;
    manifest.job = "job";
    manifest.tenant = "default";
    manifest.num_nodes = layout_.topology().num_nodes;
    manifest.local_world_size = layout_.topology().local_world_size;
    manifest.exchange = "exact";
    manifest.optimizer = kernels::OptimizerKind::kAdamW;
    manifest.num_moments = 2;
    manifest.groups = {{}, {}};
    manifest.has_published = has_published_;
    for (const layout::TensorSpec& tensor : layout_.tensors()) {
      manifest.tensors.push_back({tensor.name, tensor.shape, tensor.dtype,
                                  tensor.trainable, tensor.group});
    }
    return manifest;
  }

  ShardContent content() const {
    return {.num_moments = 2,
            .has_published = has_published_,
            .gathers_weights = gathers_weights_};
  }
  const layout::Layout& layout() const { return layout_; }
  NodeRank node() const { return node_; }
  device::Device* device() { return &device_; }
  optimizer::ShardState* state() { return state_.get(); }
  std::span<std::byte> weights() { return weights_; }
  // All of it; where they are gathered, the node's own parts.
  WeightPlaces places() {
    if (!gathers_weights_) return WeightPlaces(weights());
    const int owner = layout_.topology().OwnerOf(node_).value();
    const layout::GatherUnits units(layout_);
    std::vector<WeightPlaces::Part> parts;
    for (const layout::GatherUnit& unit : units.units()) {
      const layout::ByteRange& part = unit.parts[owner];
      parts.push_back({part.begin, weights().subspan(part.begin, part.size())});
    }
    return WeightPlaces(std::move(parts));
  }

 private:
  const layout::Layout layout_;
  const NodeRank node_;
  device::HostDevice device_;
  const std::unique_ptr<optimizer::ShardState> state_;
  std::vector<std::byte> weights_;
  const bool has_published_;
  const bool gathers_weights_;
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_SNAPSHOT_RIG_H_
