#include "server/optimizer/optimizer.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "kernels/host/host.h"
#include "kernels/hyper_parameters.h"
#include "kernels/kernels.h"
#include "kernels/reference/reference.h"
#include "kernels/single_step.h"
#include "kernels/step_undo.h"
#include "proto/control_block.h"
#include "server/base/clock.h"
#include "server/base/event_loop.h"
#include "server/base/random.h"
#include "server/base/sim_compute_pool.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/base/thread_pool.h"
#include "server/device/device.h"
#include "server/device/host/host_device.h"
#include "server/layout/layout.h"

namespace ballast::optimizer {
namespace {

using base::IsOk;
using base::StatusIs;
using kernels::DType;
using kernels::HyperParameters;
using kernels::OptimizerKind;
using kernels::StepScalars;

constexpr Generation kGeneration(1);

std::vector<layout::TensorSpec> MixedTensors() {
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

layout::Layout MakeLayout(int nodes, uint64_t bucket_bytes,
                          uint64_t chunk_bytes) {
  return *layout::Layout::Create(
      MixedTensors(), {nodes, 1}, 2,
      {.bucket_bytes = bucket_bytes, .chunk_bytes = chunk_bytes});
}

std::vector<float> Noise(int64_t count, uint64_t seed, float scale) {
  base::SeededRandom random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = scale * (static_cast<float>(random.Below(2'000'001)) / 1e6f - 1);
  }
  return values;
}

std::vector<StepScalars> ScalarsOf(OptimizerKind kind, int64_t step,
                                   bool has_momentum) {
  std::vector<StepScalars> scalars;
  for (const double lr : {0.01, 0.003}) {
    HyperParameters hyper;
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

constexpr Case kCases[] = {
    {OptimizerKind::kSgd, false},  {OptimizerKind::kSgd, true},
    {OptimizerKind::kAdam, false}, {OptimizerKind::kAdamW, false},
    {OptimizerKind::kLion, false}, {OptimizerKind::kAdagrad, false}};

class OptimizerTest : public testing::Test {
 protected:
  base::SimExecutor executor_{5};
  device::HostDevice device_{{}, &executor_};
};

TEST_F(OptimizerTest, EqualsThePlainLoopForAnyCut) {  // I9, I14, I25
  for (const Case& c : kCases) {
    for (const int nodes : {1, 3}) {
      for (const uint64_t bucket_bytes : {1, 40'000, 1 << 22}) {
        for (const uint64_t chunk_bytes : {1, 30'000}) {
          const layout::Layout layout =
              MakeLayout(nodes, bucket_bytes, chunk_bytes);
          for (int r = 0; r < nodes; ++r) {
            base::SimComputePool pool(&executor_, r, 1 + r);
            Node node(layout, NodeRank(r), c.kind, c.has_momentum, &device_,
                      &pool);
            ASSERT_THAT(node.Create(), IsOk());
            PlainLoop own(layout);
            node.LoadWeights(own);
            node.optimizer().InitializeFromWeights(Moments::kZero);
            for (int64_t step = 1; step <= 3; ++step) {
              const auto scalars = ScalarsOf(c.kind, step, c.has_momentum);
              own.NewGradients(step);
              node.LoadGradients(own);
              own.Step(c.kind, c.has_momentum, scalars);
              ASSERT_THAT(node.Begin(Step(step), scalars), IsOk());
              node.StartAll();
              ASSERT_TRUE(executor_.RunUntilIdle());
              node.ExpectEquals(own);
              ASSERT_FALSE(HasFailure());
            }
          }
        }
      }
    }
  }
}

TEST_F(OptimizerTest, ReportsEachBucketOnceOwnedOrNot) {
  const layout::Layout layout = MakeLayout(5, 8192, 8192);  // a cell a bucket
  base::SimComputePool pool(&executor_, 3, 2);
  Node node(layout, NodeRank(0), OptimizerKind::kAdam, false, &device_, &pool);
  ASSERT_THAT(node.Create(), IsOk());
  ASSERT_EQ(layout.state_elements(NodeRank(0)), 0);
  ASSERT_THAT(node.Begin(Step(1), ScalarsOf(OptimizerKind::kAdam, 1, false)),
              IsOk());
  node.StartAll();
  ASSERT_TRUE(executor_.RunUntilIdle());
  EXPECT_EQ(node.observer().counts.size(), layout.buckets().size());
  for (const auto& [bucket, count] : node.observer().counts) {
    EXPECT_EQ(count, 1) << bucket.ToString();
  }
}

TEST_F(OptimizerTest, AChunkIsUpdatedOnceAStep) {  // I14, I19
  const layout::Layout layout = MakeLayout(1, 1 << 20, 16384);
  base::SimComputePool pool(&executor_, 3, 2);
  Node node(layout, NodeRank(0), OptimizerKind::kAdamW, false, &device_, &pool);
  ASSERT_THAT(node.Create(), IsOk());
  PlainLoop plain(layout);
  node.LoadWeights(plain);
  node.optimizer().InitializeFromWeights(Moments::kZero);
  plain.NewGradients(1);
  node.LoadGradients(plain);
  const auto scalars = ScalarsOf(OptimizerKind::kAdamW, 1, false);
  plain.Step(OptimizerKind::kAdamW, false, scalars);
  for (int time = 0; time < 2; ++time) {  // the second one changes nothing
    ASSERT_THAT(node.Begin(Step(1), scalars), IsOk());
    node.StartAll();
    ASSERT_TRUE(executor_.RunUntilIdle());
    node.ExpectEquals(plain);
  }
}

// Keeps what a chunk was when it was announced.
struct CopyingGuard final : UpdateGuard {
  void BeforeUpdate(int64_t chunk) override {
    ++calls[chunk];
    for (const layout::Piece& piece : (*chunks)[chunk]->pieces) {
      std::copy_n(state->master().begin() + piece.state_offset, piece.size(),
                  copy.begin() + piece.state_offset);
    }
  }
  void BeforeResiduals(int, BucketId) override {}
  std::vector<const layout::Chunk*>* chunks;
  ShardState* state;
  std::vector<float> copy;
  std::map<int64_t, int> calls;
};

TEST_F(OptimizerTest, AnnouncesEachChunkBeforeItChanges) {  // I18
  const layout::Layout layout = MakeLayout(2, 1 << 16, 16384);
  base::SimComputePool pool(&executor_, 3, 2);
  Node node(layout, NodeRank(1), OptimizerKind::kAdamW, false, &device_, &pool);
  std::vector<const layout::Chunk*> chunks;
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const auto& chunk : bucket.shards[1].chunks) chunks.push_back(&chunk);
  }
  CopyingGuard guard;
  guard.chunks = &chunks;
  guard.state = &node.state();
  node.GuardBy(&guard);
  ASSERT_THAT(node.Create(), IsOk());
  PlainLoop plain(layout);
  node.LoadWeights(plain);
  node.optimizer().InitializeFromWeights(Moments::kZero);
  plain.NewGradients(1);
  node.LoadGradients(plain);
  const std::vector<float> before(node.state().master().begin(),
                                  node.state().master().end());
  guard.copy.resize(before.size());
  for (int time = 0; time < 2; ++time) {  // the second one changes nothing
    ASSERT_THAT(node.Begin(Step(1), ScalarsOf(OptimizerKind::kAdamW, 1, false)),
                IsOk());
    node.StartAll();
    ASSERT_TRUE(executor_.RunUntilIdle());
  }
  EXPECT_EQ(guard.calls.size(), chunks.size());
  for (const auto& [chunk, count] : guard.calls) EXPECT_EQ(count, 1) << chunk;
  EXPECT_EQ(guard.copy, before);
  EXPECT_NE(before, std::vector<float>(node.state().master().begin(),
                                       node.state().master().end()));
}

TEST_F(OptimizerTest, MastersOfNewWeightsKeepTheirMomentsIfAsked) {  // I1
  const layout::Layout layout = MakeLayout(1, 1 << 20, 16384);
  base::SimComputePool pool(&executor_, 3, 2);
  Node node(layout, NodeRank(0), OptimizerKind::kAdamW, false, &device_, &pool);
  std::vector<const layout::Chunk*> chunks;
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const auto& chunk : bucket.shards[0].chunks) chunks.push_back(&chunk);
  }
  CopyingGuard guard;
  guard.chunks = &chunks;
  guard.state = &node.state();
  node.GuardBy(&guard);
  ASSERT_THAT(node.Create(), IsOk());
  PlainLoop plain(layout);
  node.LoadWeights(plain);
  node.optimizer().InitializeFromWeights(Moments::kZero);
  plain.NewGradients(1);
  node.LoadGradients(plain);
  guard.copy.resize(node.state().master().size());
  ASSERT_THAT(node.Begin(Step(1), ScalarsOf(OptimizerKind::kAdamW, 1, false)),
              IsOk());
  node.StartAll();
  ASSERT_TRUE(executor_.RunUntilIdle());
  const auto copy = [](std::span<float> values) {
    return std::vector<float>(values.begin(), values.end());
  };
  const std::vector<float> master = copy(node.state().master());
  const std::vector<float> moment = copy(node.state().moment(0));

  guard.calls.clear();
  node.optimizer().KeepAll();  // I18
  EXPECT_EQ(guard.calls.size(), chunks.size());
  EXPECT_EQ(guard.copy, master);
  node.LoadWeights(plain);  // the initial ones again
  node.optimizer().InitializeFromWeights(Moments::kStay);
  EXPECT_NE(copy(node.state().master()), master);
  EXPECT_EQ(copy(node.state().moment(0)), moment);
  node.optimizer().InitializeFromWeights(Moments::kZero);
  EXPECT_EQ(copy(node.state().moment(0)), std::vector<float>(moment.size()));
  EXPECT_NE(moment, std::vector<float>(moment.size()));  // the control
}

TEST_F(OptimizerTest, FrozenAndOthersBytesStayUntouched) {  // I5, I14
  const layout::Layout layout = MakeLayout(2, 30'000, 16384);
  base::SimComputePool pool(&executor_, 3, 2);
  Node node(layout, NodeRank(1), OptimizerKind::kAdamW, false, &device_, &pool);
  ASSERT_THAT(node.Create(), IsOk());
  PlainLoop plain(layout);
  plain.NewGradients(1);
  node.LoadGradients(plain);
  std::ranges::fill(node.weights(), std::byte{0x5a});
  ASSERT_THAT(node.Begin(Step(1), ScalarsOf(OptimizerKind::kAdamW, 1, false)),
              IsOk());
  node.StartAll();
  ASSERT_TRUE(executor_.RunUntilIdle());
  std::vector<bool> is_owned(node.weights().size());
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const layout::Piece& piece : bucket.shards[1].pieces) {
      const int size = SizeOf(layout.tensor(piece.tensor).dtype);
      const uint64_t offset = layout.place(piece.tensor).weight_offset;
      std::fill(is_owned.begin() + offset + piece.begin * size,
                is_owned.begin() + offset + piece.end * size, true);
    }
  }
  for (size_t i = 0; i < is_owned.size(); ++i) {
    ASSERT_TRUE(is_owned[i] || node.weights()[i] == std::byte{0x5a}) << i;
  }
}

TEST_F(OptimizerTest, WeightsThatAreQuantizedLaterAreNotCast) {  // I2
  const layout::Layout layout = MakeLayout(2, 30'000, 16384);
  base::SimComputePool pool(&executor_, 3, 2);
  PlainLoop plain(layout);
  plain.NewGradients(1);
  std::vector<float> masters[2];
  for (const bool casts : {false, true}) {
    Node node(layout, NodeRank(1), OptimizerKind::kAdamW, false, &device_,
              &pool);
    if (!casts) node.LeaveWeightsAlone();
    ASSERT_THAT(node.Create(), IsOk());
    node.LoadWeights(plain);
    node.optimizer().InitializeFromWeights(Moments::kZero);
    node.LoadGradients(plain);
    const std::vector<std::byte> before(node.weights().begin(),
                                        node.weights().end());
    ASSERT_THAT(node.Begin(Step(1), ScalarsOf(OptimizerKind::kAdamW, 1, false)),
                IsOk());
    node.StartAll();
    ASSERT_TRUE(executor_.RunUntilIdle());
    EXPECT_EQ(std::ranges::equal(node.weights(), before), !casts);
    masters[casts].assign(node.state().master().begin(),
                          node.state().master().end());
  }
  EXPECT_EQ(masters[0], masters[1]);
}

TEST_F(OptimizerTest, RefusesScalarsThatDoNotFit) {  // I27
  const layout::Layout layout = MakeLayout(1, 1 << 20, 16384);
  base::SimComputePool pool(&executor_, 3, 2);
  Node node(layout, NodeRank(0), OptimizerKind::kSgd, false, &device_, &pool);
  ASSERT_THAT(node.Create(), IsOk());
  const auto momentum = ScalarsOf(OptimizerKind::kSgd, 1, true);
  EXPECT_THAT(node.Begin(Step(1), momentum),
              StatusIs(absl::StatusCode::kInvalidArgument, "momentum"));
  const auto scalars = ScalarsOf(OptimizerKind::kSgd, 1, false);
  EXPECT_THAT(node.Begin(Step(1), std::span(scalars).first(1)),
              StatusIs(absl::StatusCode::kInvalidArgument, "1 param groups"));
  EXPECT_THAT(node.Begin(Step(1), scalars), IsOk());
}

TEST_F(OptimizerTest, RealThreadsGiveTheSameBits) {  // I22, I25
  const layout::Layout layout = MakeLayout(1, 30'000, 8192);
  base::MonotonicClock clock;
  auto loop = *base::EventLoop::Create(&clock);
  base::ThreadPool pool({.num_threads = 3}, loop.get());
  Node node(layout, NodeRank(0), OptimizerKind::kAdamW, false, &device_, &pool);
  ASSERT_THAT(node.Create(), IsOk());
  PlainLoop plain(layout);
  node.LoadWeights(plain);
  node.optimizer().InitializeFromWeights(Moments::kZero);
  for (int64_t step = 1; step <= 10; ++step) {
    const auto scalars = ScalarsOf(OptimizerKind::kAdamW, step, false);
    plain.NewGradients(step);
    node.LoadGradients(plain);
    plain.Step(OptimizerKind::kAdamW, false, scalars);
    ASSERT_THAT(node.Begin(Step(step), scalars), IsOk());
    node.observer().counts.clear();
    node.StartAll();
    while (node.observer().counts.size() < layout.buckets().size()) {
      loop->RunOnce(absl::Seconds(1));
    }
    node.ExpectEquals(plain);
    ASSERT_FALSE(HasFailure());
  }
}

// A kernel that kills the process after the first half of its n-th call, in
// the middle of an element: while its old values are kept, or when some of
// its arrays have changed.
int calls_to_live = 0;
bool dies_while_keeping = false;

void DyingStep(OptimizerKind kind, const StepScalars& scalars, int64_t count,
               const float* gradient, float* master, float* m, float* v,
               DType dtype, void* weights, const kernels::StepUndo& undo) {
  const bool is_last = --calls_to_live == 0;
  const int64_t at = is_last ? count / 2 : count;
  kernels::Reference().optimizer_step_undo(kind, scalars, at, gradient, master,
                                           m, v, dtype, weights, undo);
  if (!is_last) return;
  undo.master[at] = master[at];
  if (!dies_while_keeping) {
    undo.m[at] = m[at];
    undo.v[at] = v[at];
    kernels::StoreInOrder(undo.saved, undo.first + at + 1);
    master[at] = 77;
    v[at] = 78;
  }
  kill(getpid(), SIGKILL);
}

class DeathTest : public OptimizerTest {
 protected:
  DeathTest() {
    plain_.NewGradients(1);
    before_.NewGradients(1);
    plain_.Step(OptimizerKind::kAdamW, false, scalars_);
    dying_.optimizer_step_undo = DyingStep;
  }

  // A child updates everything and is killed in call `death`.
  void Die(int death, Node* node, std::unique_ptr<UndoLog>* undo) {
    *undo = *UndoLog::Create(&device_, layout_, NodeRank(0), 2, 2);
    node->LoadWeights(before_);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      calls_to_live = death;
      if (!node->Create(std::move(*undo)).ok()) _exit(1);
      node->optimizer().InitializeFromWeights(Moments::kZero);
      node->LoadGradients(plain_);
      if (!node->Begin(Step(1), scalars_).ok()) _exit(1);
      node->StartAll();
      executor_.RunUntilIdle();
      _exit(2);  // nobody died
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
    EXPECT_TRUE((*undo)->has_open_chunks());
  }

  // The next life, the record restored to `state`, makes the step again.
  void GoOn(Node* node, std::unique_ptr<UndoLog> undo, ShardState* state) {
    const auto restored = undo->RestoreOpenChunks(state);
    ASSERT_THAT(restored, IsOk());
    ASSERT_EQ(restored->size(), 1u);
    EXPECT_EQ(restored->front().step, Step(1));
    ASSERT_THAT(node->Create(std::move(undo)), IsOk());
    calls_to_live = 0;  // counts down for ever
    ASSERT_THAT(node->Begin(Step(1), scalars_), IsOk());
    node->StartAll();
    ASSERT_TRUE(executor_.RunUntilIdle());
  }

  const layout::Layout layout_ = MakeLayout(1, 30'000, 16384);
  const std::vector<StepScalars> scalars_ =
      ScalarsOf(OptimizerKind::kAdamW, 1, false);
  PlainLoop plain_{layout_};
  PlainLoop before_{layout_};
  kernels::Kernels dying_ = kernels::Reference();
};

TEST_F(DeathTest, InTheMiddleIsHealedByTheNextLife) {  // I20
  for (const bool is_keeping : {false, true}) {
    dies_while_keeping = is_keeping;
    for (int death = 1; death <= 12; ++death) {
      base::SimComputePool pool(&executor_, 3, 2);
      Node node(layout_, NodeRank(0), OptimizerKind::kAdamW, false, &device_,
                &pool, dying_);
      std::unique_ptr<UndoLog> undo;
      Die(death, &node, &undo);
      GoOn(&node, std::move(undo), &node.state());
      node.ExpectEquals(plain_);
      ASSERT_FALSE(HasFailure()) << "death in call " << death;
    }
  }
}

// Negative control: the record is not brought back.
TEST_F(DeathTest, IsNotHealedWithoutTheRecord) {
  dies_while_keeping = false;
  base::SimComputePool pool(&executor_, 3, 2);
  Node node(layout_, NodeRank(0), OptimizerKind::kAdamW, false, &device_, &pool,
            dying_);
  std::unique_ptr<UndoLog> undo;
  Die(5, &node, &undo);
  const auto elsewhere = *ShardState::Create(&device_, layout_, NodeRank(0),
                                             OptimizerKind::kAdamW, false);
  GoOn(&node, std::move(undo), elsewhere.get());
  EXPECT_FALSE(node.Equals(plain_));
}

// A group without momentum beside one with: the kernel sees no buffer, and
// the record has what would be restored.
TEST_F(OptimizerTest, TheRecordHasBuffersThatAStepLeavesAlone) {  // I20
  const layout::Layout layout = *layout::Layout::Create(
      {{"w", {33}, DType::kFloat32, true, 1}}, {1, 1}, 2, {});
  base::SimComputePool pool(&executor_, 3, 1);
  Node node(layout, NodeRank(0), OptimizerKind::kSgd, true, &device_, &pool);
  auto undo = UndoLog::Create(&device_, layout, NodeRank(0), 1, 1);
  ASSERT_THAT(undo, IsOk());
  const UndoLog& log = **undo;
  ASSERT_THAT(node.Create(*std::move(undo)), IsOk());
  std::ranges::fill(node.state().moment(0), 5.0f);
  std::vector<StepScalars> scalars = ScalarsOf(OptimizerKind::kSgd, 2, true);
  scalars[1] = ScalarsOf(OptimizerKind::kSgd, 2, false)[1];
  ASSERT_THAT(node.Begin(Step(2), scalars), IsOk());
  node.StartAll();
  ASSERT_TRUE(executor_.RunUntilIdle());
  const kernels::StepUndo record = log.ForPiece(0, 0, 0);
  EXPECT_EQ(*record.saved, 33);
  for (int i = 0; i < 33; ++i) EXPECT_EQ(record.m[i], 5) << i;
  for (int i = 0; i < 33; ++i) EXPECT_EQ(node.state().moment(0)[i], 5) << i;
}

// Whatever the instruction: what a death leaves behind is healed. The state
// is restored in copies of the memory while the update runs step by step.
class AnyInstructionTest : public OptimizerTest {
 protected:
  static constexpr uint64_t kWord = proto::SequenceWord(1, 1);

  // A log or a state in memory that is this test's own.
  class Copy final : public device::SharedBuffer {
   public:
    explicit Copy(std::span<const std::byte> bytes)
        : bytes_(bytes.begin(), bytes.end()) {}
    uint64_t size_bytes() const override { return bytes_.size(); }
    std::span<std::byte> bytes() override { return bytes_; }
    absl::StatusOr<base::UniqueFd> Export(base::Access) const override {
      return absl::UnimplementedError("only a copy");
    }
    absl::Status Reserve(uint64_t, uint64_t) override {
      return absl::UnimplementedError("only a copy");
    }
    void Discard(uint64_t, uint64_t) override {}
    bool is_adopted() const override { return false; }

   private:
    std::vector<std::byte> bytes_;
  };

  // Lends its undo log out.
  class LendingDevice final : public device::Device {
   public:
    explicit LendingDevice(device::Device* device) : device_(device) {}
    const device::Capabilities& capabilities() const override {
      return device_->capabilities();
    }
    absl::StatusOr<std::unique_ptr<device::SharedBuffer>> AllocateShared(
        uint64_t size, std::string_view name) override {
      auto buffer = device_->AllocateShared(size, name);
      if (buffer.ok()) last = (*buffer)->bytes();
      return buffer;
    }
    absl::StatusOr<std::unique_ptr<device::SharedBuffer>> AllocateSparse(
        uint64_t, uint64_t, std::string_view) override {
      return absl::UnimplementedError("not asked for");
    }
    absl::StatusOr<std::unique_ptr<device::SharedBuffer>> AdoptShared(
        base::UniqueFd, uint64_t, uint64_t, std::string_view) override {
      return absl::UnimplementedError("not asked for");
    }
    absl::StatusOr<std::unique_ptr<device::PrivateBuffer>> AllocatePrivate(
        uint64_t size, std::string_view name) override {
      return device_->AllocatePrivate(size, name);
    }
    std::unique_ptr<device::Queue> CreateQueue() override {
      return device_->CreateQueue();
    }
    uint64_t shared_bytes_in_use() const override { return 0; }
    uint64_t private_bytes_in_use() const override { return 0; }

    std::span<std::byte> last;

   private:
    device::Device* const device_;
  };

  using Arrays = std::array<std::vector<float>, 3>;

  static Arrays ArraysOf(ShardState* state) {
    const auto copy = [](std::span<float> array) {
      return std::vector<float>(array.begin(), array.end());
    };
    return {copy(state->master()), copy(state->moment(0)),
            copy(state->moment(1))};
  }

  // Of the chunk that holds `piece`, healed: as before or as after it.
  static bool AreEqual(const Arrays& a, const Arrays& b,
                       const layout::Piece& piece) {
    for (size_t i = 0; i < a.size(); ++i) {
      if (std::memcmp(a[i].data() + piece.state_offset,
                      b[i].data() + piece.state_offset,
                      piece.size() * sizeof(float)) != 0) {
        return false;
      }
    }
    return true;
  }

  std::string CheckDeath(const layout::Layout& layout, const Arrays& before,
                         const Arrays& after, ShardState* state) {
    auto log = UndoLog::Open(std::make_unique<Copy>(lender_.last), layout,
                             NodeRank(0), 2);
    if (!log.ok()) return log.status().ToString();
    const Arrays now = ArraysOf(state);
    std::ranges::copy(now[0], copy_->master().begin());
    std::ranges::copy(now[1], copy_->moment(0).begin());
    std::ranges::copy(now[2], copy_->moment(1).begin());
    const auto restored = (*log)->RestoreOpenChunks(copy_.get());
    if (!restored.ok()) return restored.status().ToString();
    const Arrays healed = ArraysOf(copy_.get());
    int64_t chunk = 0;
    for (const layout::Bucket& bucket : layout.buckets()) {
      for (const layout::Chunk& owned : bucket.shards[0].chunks) {
        const bool is_done = (*log)->IsDone(chunk++, kWord);
        for (const layout::Piece& piece : owned.pieces) {
          if (!AreEqual(healed, is_done ? after : before, piece)) {
            return absl::StrCat("chunk ", chunk - 1, " is not as ",
                                is_done ? "after" : "before", " the step");
          }
        }
      }
    }
    return "";
  }

  LendingDevice lender_{&device_};
  std::unique_ptr<ShardState> copy_;
};

TEST_F(AnyInstructionTest, ADeathIsHealed) {  // I20
  // Two chunks, of three pieces with gaps between them and of one.
  const layout::Layout layout = *layout::Layout::Create(
      {{"a", {19}}, {"b", {1}}, {"c", {1500}}, {"d", {701}}}, {1, 1}, 1,
      {.chunk_bytes = 2048 * sizeof(float)});
  ASSERT_GE(layout.buckets()[0].shards[0].chunks.size(), 2u);
  copy_ = *ShardState::Create(&device_, layout, NodeRank(0),
                              OptimizerKind::kAdamW, false);
  base::SimComputePool pool(&executor_, 3, 1);
  Node node(layout, NodeRank(0), OptimizerKind::kAdamW, false, &device_, &pool,
            kernels::Host());
  auto undo = UndoLog::Create(&lender_, layout, NodeRank(0), 2, 1);
  ASSERT_THAT(undo, IsOk());
  ASSERT_THAT(node.Create(*std::move(undo)), IsOk());
  PlainLoop plain(layout);
  plain.NewGradients(1);
  node.LoadWeights(plain);
  node.optimizer().InitializeFromWeights(Moments::kZero);
  node.LoadGradients(plain);
  const auto scalars = ScalarsOf(OptimizerKind::kAdamW, 1, false);
  ASSERT_THAT(node.Begin(Step(1), scalars), IsOk());
  const Arrays before = ArraysOf(&node.state());
  plain.Step(OptimizerKind::kAdamW, false, scalars);
  Arrays after = before;
  for (const layout::Piece& piece : layout.buckets()[0].shards[0].pieces) {
    const auto put = [&piece](const std::vector<float>& whole,
                              std::vector<float>* state) {
      std::copy_n(whole.begin() + piece.begin, piece.size(),
                  state->begin() + piece.state_offset);
    };
    put(plain[piece.tensor].master, &after[0]);
    put(plain[piece.tensor].m, &after[1]);
    put(plain[piece.tensor].v, &after[2]);
  }

  const std::span<const std::byte> memory[] = {
      lender_.last, std::as_bytes(node.state().master()),
      std::as_bytes(node.state().moment(0)),
      std::as_bytes(node.state().moment(1))};
  std::vector<std::byte> seen[4];
  int64_t instructions = 0;
  int changes = 0;
  const std::string wrong = kernels::ForEachInstruction(
      [&] {
        node.StartAll();
        executor_.RunUntilIdle();
      },
      [&]() -> std::string {
        bool is_changed = false;
        for (int i = 0; i < 4; ++i) {
          if (std::ranges::equal(memory[i], seen[i])) continue;
          seen[i].assign(memory[i].begin(), memory[i].end());
          is_changed = true;
        }
        if (!is_changed) return "";
        ++changes;
        return CheckDeath(layout, before, after, &node.state());
      },
      &instructions);
  EXPECT_EQ(wrong, "");
  if (instructions == 0) GTEST_SKIP() << "nothing was traced";
  EXPECT_GT(changes, 500);
  node.ExpectEquals(plain);
}

// Negative control: without the restore the half-updated chunk is updated
// twice, and an optimizer refuses to go on with it.
TEST_F(OptimizerTest, OpenChunksMustBeRestoredFirst) {
  const layout::Layout layout = MakeLayout(1, 30'000, 16384);
  base::SimComputePool pool(&executor_, 3, 2);
  Node node(layout, NodeRank(0), OptimizerKind::kAdamW, false, &device_, &pool);
  auto undo = UndoLog::Create(&device_, layout, NodeRank(0), 2, 2);
  ASSERT_THAT(undo, IsOk());
  (*undo)->Begin(0, 0, 1);
  EXPECT_THAT(node.Create(*std::move(undo)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "restore"));
  undo = UndoLog::Create(&device_, layout, NodeRank(0), 2, 1);
  ASSERT_THAT(undo, IsOk());
  EXPECT_THAT(node.Create(*std::move(undo)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "1 threads"));
}

}  // namespace
}  // namespace ballast::optimizer
