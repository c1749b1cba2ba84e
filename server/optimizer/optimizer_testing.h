// The job of the optimizer's tests, once as one node with its shard and once as
// a plain loop over whole tensors.
#ifndef SERVER_OPTIMIZER_OPTIMIZER_TESTING_H_
#define SERVER_OPTIMIZER_OPTIMIZER_TESTING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "kernels/hyper_parameters.h"
#include "kernels/kernels.h"
#include "kernels/reference/reference.h"
#include "server/base/compute_pool.h"
#include "server/base/ids.h"
#include "server/base/random.h"
#include "server/base/sim_executor.h"
#include "server/device/device.h"
#include "server/device/host/host_device.h"
#include "server/layout/layout.h"
#include "server/optimizer/optimizer.h"
#include "server/optimizer/shard_state.h"
#include "server/optimizer/undo_log.h"
#include "server/optimizer/update_guard.h"

namespace ballast::optimizer {

using kernels::DType;
using kernels::OptimizerKind;
using kernels::StepScalars;

inline constexpr Generation kGeneration(1);

inline std::vector<layout::TensorSpec> MixedTensors() {
  return {{"scalar", {}, DType::kFloat32, true, 1},
          {"empty", {0}, DType::kFloat32},
          {"seven", {7}, DType::kBFloat16, true, 1},
          {"frozen", {100}, DType::kBFloat16, false},
          {"below", {2047}, DType::kFloat16},
          {"cell", {2048}, DType::kFloat32},
          {"above", {2049}, DType::kBFloat16},
          {"cube", {13, 17, 19}, DType::kFloat32, true, 1},
          {"large", {20003}, DType::kFloat16}};
}

inline layout::Layout MakeLayout(int nodes, uint64_t bucket_bytes,
                                 uint64_t chunk_bytes) {
  return *layout::Layout::Create(
      MixedTensors(), {nodes, 1}, 2,
      {.bucket_bytes = bucket_bytes, .chunk_bytes = chunk_bytes});
}

inline std::vector<float> Noise(int64_t count, uint64_t seed, float scale) {
  base::SeededRandom random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = scale * (static_cast<float>(random.Below(2'000'001)) / 1e6f - 1);
  }
  return values;
}

inline std::vector<StepScalars> ScalarsOf(OptimizerKind kind, int64_t step,
                                          bool has_momentum) {
  std::vector<StepScalars> scalars;
  for (const double lr : {0.01, 0.003}) {
    kernels::HyperParameters hyper;
    hyper.lr = lr;
    hyper.weight_decay = lr;
    hyper.momentum = has_momentum && kind == OptimizerKind::kSgd ? 0.9 : 0;
    scalars.push_back(kernels::PrepareScalars(kind, hyper, step, 0.75f));
  }
  return scalars;
}

// The whole job without layout, pool or chunks: the plain loop.
struct WholeTensor {
  std::vector<float> master, m, v, gradient;
  std::vector<std::byte> weights;
};

class PlainLoop {
 public:
  explicit PlainLoop(const layout::Layout& layout) : layout_(layout) {
    for (size_t i = 0; i < layout.tensors().size(); ++i) {
      const int64_t count = layout.places()[i].num_elements;
      WholeTensor whole{Noise(count, i, 2),
                        std::vector<float>(count),
                        std::vector<float>(count),
                        {},
                        {}};
      const DType dtype = layout.tensors()[i].dtype;
      whole.weights.resize(count * SizeOf(dtype));
      kernels::Reference().cast(whole.master.data(), dtype, count,
                                whole.weights.data());
      kernels::Reference().widen(whole.weights.data(), dtype, count,
                                 whole.master.data());
      tensors_.push_back(std::move(whole));
    }
  }

  void NewGradients(int64_t step) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].gradient =
          Noise(tensors_[i].master.size(), 1000 * step + i, 0.5f);
    }
  }

  void Step(OptimizerKind kind, bool has_momentum,
            std::span<const StepScalars> scalars) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!layout_.tensors()[i].trainable) continue;
      WholeTensor& t = tensors_[i];
      const int arrays = kernels::StateArrays(kind, has_momentum);
      kernels::Reference().optimizer_step(
          kind, scalars[layout_.tensors()[i].group], t.master.size(),
          t.gradient.data(), t.master.data(), arrays > 0 ? t.m.data() : nullptr,
          arrays > 1 ? t.v.data() : nullptr, layout_.tensors()[i].dtype,
          t.weights.data());
    }
  }

  const WholeTensor& operator[](TensorId id) const {
    return tensors_[id.value()];
  }

 private:
  const layout::Layout& layout_;
  std::vector<WholeTensor> tensors_;
};

class CountingObserver final : public UpdateObserver {
 public:
  void OnUpdated(BucketId bucket) override {
    EXPECT_FALSE(is_inside_call);
    ++counts[bucket];
  }
  std::map<BucketId, int> counts;
  bool is_inside_call = false;
};

// One node: its state, published weights and optimizer.
class Node {
 public:
  Node(const layout::Layout& layout, NodeRank node, OptimizerKind kind,
       bool has_momentum, device::Device* device, base::ComputePool* pool,
       const kernels::Kernels& kernels = kernels::Reference())
      : layout_(layout), node_(node) {
    weights_ = *device->AllocateShared(layout.weights_bytes(), "weights");
    state_ = *ShardState::Create(device, layout, node, kind, has_momentum);
    parts_ = {.layout = &layout_,
              .node = node,
              .kernels = &kernels,
              .pool = pool,
              .device = device,
              .state = state_.get(),
              .weights = weights_->bytes(),
              .observer = &observer_};
  }

  void LeaveWeightsAlone() { parts_.casts_weights = false; }
  void GuardBy(UpdateGuard* guard) { parts_.guard = guard; }

  absl::Status Create(std::unique_ptr<UndoLog> undo = nullptr) {
    auto optimizer = Optimizer::Create(parts_, std::move(undo));
    if (!optimizer.ok()) return optimizer.status();
    optimizer_ = *std::move(optimizer);
    return absl::OkStatus();
  }

  void LoadWeights(const PlainLoop& plain) {
    for (size_t i = 0; i < layout_.tensors().size(); ++i) {
      const std::vector<std::byte>& from = plain[TensorId(i)].weights;
      std::ranges::copy(
          from, weights_->bytes().begin() + layout_.places()[i].weight_offset);
    }
  }

  void LoadGradients(const PlainLoop& plain) {
    // Padding is poison: I3.
    std::ranges::fill(state_->gradient(),
                      std::numeric_limits<float>::quiet_NaN());
    ForPieces([&](const layout::Piece& piece) {
      std::copy_n(plain[piece.tensor].gradient.begin() + piece.begin,
                  piece.size(),
                  state_->gradient().begin() + piece.state_offset);
    });
  }

  absl::Status Begin(Step step, std::span<const StepScalars> scalars) {
    return optimizer_->BeginStep(kGeneration, step, scalars);
  }

  void StartAll() {
    observer_.is_inside_call = true;
    for (const layout::Bucket& bucket : layout_.buckets()) {
      optimizer_->StartUpdate(bucket.id);
    }
    observer_.is_inside_call = false;
  }

  // Bit for bit: its own pieces; other bytes of the segment are untouched.
  void ExpectEquals(const PlainLoop& plain) {
    ForPieces([&](const layout::Piece& piece) {
      const WholeTensor& whole = plain[piece.tensor];
      EXPECT_TRUE(Same(state_->master(), whole.master, piece));
      if (state_->num_moments() > 0) {
        EXPECT_TRUE(Same(state_->moment(0), whole.m, piece));
      }
      if (state_->num_moments() > 1) {
        EXPECT_TRUE(Same(state_->moment(1), whole.v, piece));
      }
      const int size = SizeOf(layout_.tensor(piece.tensor).dtype);
      EXPECT_EQ(std::memcmp(weights_->bytes().data() +
                                layout_.place(piece.tensor).weight_offset +
                                piece.begin * size,
                            whole.weights.data() + piece.begin * size,
                            piece.size() * size),
                0);
    });
  }

  bool Equals(const PlainLoop& plain) {
    bool is_equal = true;
    ForPieces([&](const layout::Piece& piece) {
      is_equal &= Same(state_->master(), plain[piece.tensor].master, piece);
    });
    return is_equal;
  }

  std::span<std::byte> weights() { return weights_->bytes(); }
  ShardState& state() { return *state_; }
  Optimizer& optimizer() { return *optimizer_; }
  CountingObserver& observer() { return observer_; }

 private:
  template <typename Visit>
  void ForPieces(Visit visit) {
    for (const layout::Bucket& bucket : layout_.buckets()) {
      for (const auto& piece : bucket.shards[node_.value()].pieces) {
        visit(piece);
      }
    }
  }

  static bool Same(std::span<const float> state,
                   const std::vector<float>& whole,
                   const layout::Piece& piece) {
    return std::memcmp(state.data() + piece.state_offset,
                       whole.data() + piece.begin,
                       piece.size() * sizeof(float)) == 0;
  }

  const layout::Layout& layout_;
  const NodeRank node_;
  std::unique_ptr<device::SharedBuffer> weights_;
  std::unique_ptr<ShardState> state_;
  CountingObserver observer_;
  Parts parts_;
  std::unique_ptr<Optimizer> optimizer_;
};

struct Case {
  OptimizerKind kind;
  bool has_momentum;
};

inline constexpr Case kCases[] = {
    {OptimizerKind::kSgd, false},  {OptimizerKind::kSgd, true},
    {OptimizerKind::kAdam, false}, {OptimizerKind::kAdamW, false},
    {OptimizerKind::kLion, false}, {OptimizerKind::kAdagrad, false}};

class OptimizerTest : public testing::Test {
 protected:
  base::SimExecutor executor_{5};
  device::HostDevice device_{{}, &executor_};
};

}  // namespace ballast::optimizer

#endif  // SERVER_OPTIMIZER_OPTIMIZER_TESTING_H_
