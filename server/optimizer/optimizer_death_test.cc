#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "kernels/host/host.h"
#include "kernels/hyper_parameters.h"
#include "kernels/kernels.h"
#include "kernels/reference/reference.h"
#include "kernels/single_step.h"
#include "kernels/step_undo.h"
#include "proto/control_block.h"
#include "server/base/ids.h"
#include "server/base/sim_compute_pool.h"
#include "server/base/status_matchers.h"
#include "server/device/device.h"
#include "server/layout/layout.h"
#include "server/optimizer/optimizer_testing.h"
#include "server/optimizer/shard_state.h"
#include "server/optimizer/undo_log.h"

namespace ballast::optimizer {
namespace {

using base::IsOk;
using base::StatusIs;

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
