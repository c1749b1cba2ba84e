#include "server/optimizer/undo_log.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "kernels/hyper_parameters.h"
#include "kernels/step_undo.h"
#include "proto/control_block.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/device/device.h"
#include "server/device/host/host_device.h"
#include "server/layout/layout.h"

namespace ballast::optimizer {
namespace {

using base::IsOk;
using base::StatusIs;

constexpr uint64_t kWord = proto::SequenceWord(2, 9);
constexpr int kMoments = 2;
constexpr int kThreads = 3;

// A buffer that a test can look into and damage.
class BorrowedBuffer final : public device::SharedBuffer {
 public:
  explicit BorrowedBuffer(std::vector<std::byte>* bytes) : bytes_(bytes) {}
  uint64_t size_bytes() const override { return bytes_->size(); }
  std::span<std::byte> bytes() override { return *bytes_; }
  absl::StatusOr<base::UniqueFd> Export(base::Access) const override {
    return absl::UnimplementedError("only lent");
  }
  absl::Status Reserve(uint64_t, uint64_t) override {
    return absl::UnimplementedError("only lent");
  }
  void Discard(uint64_t, uint64_t) override {}
  bool is_adopted() const override { return false; }

 private:
  std::vector<std::byte>* const bytes_;
};

class UndoLogTest : public testing::Test {
 protected:
  UndoLogTest() {
    state_ = *ShardState::Create(&device_, layout_, NodeRank(0),
                                 kernels::OptimizerKind::kAdam, false);
    undo_ =
        *UndoLog::Create(&device_, layout_, NodeRank(0), kMoments, kThreads);
    FillState(1);
  }

  // 5,000 elements in chunks of 2,048: three.
  void FillState(float value) {
    std::ranges::fill(state_->master(), value);
    std::ranges::fill(state_->moment(0), value + 0.25f);
    std::ranges::fill(state_->moment(1), value + 0.5f);
  }

  // What a step kernel has done to the record when it has kept `elements`.
  void Keep(int thread, int64_t chunk, int64_t elements) {
    undo_->Begin(thread, chunk, kWord);
    const int64_t begin = 2048 * chunk;
    const kernels::StepUndo undo = undo_->ForPiece(thread, chunk, begin);
    std::copy_n(state_->master().data() + begin, elements, undo.master);
    std::copy_n(state_->moment(0).data() + begin, elements, undo.m);
    std::copy_n(state_->moment(1).data() + begin, elements, undo.v);
    undo.saved->store(undo.first + elements);
  }
  void Keep(int thread, int64_t chunk) {
    Keep(thread, chunk, chunk < 2 ? 2048 : 904);
  }

  std::vector<RestoredChunk> Restore() {
    auto restored = undo_->RestoreOpenChunks(state_.get());
    EXPECT_THAT(restored, IsOk());
    return *std::move(restored);
  }

  base::SimExecutor executor_{1};
  device::HostDevice device_{{}, &executor_};
  layout::Layout layout_ = *layout::Layout::Create({{"w", {5000}}}, {1, 1}, 1,
                                                   {.chunk_bytes = 8192});
  std::unique_ptr<ShardState> state_;
  std::unique_ptr<UndoLog> undo_;
};

TEST_F(UndoLogTest, RestoresAnOpenChunkAndNothingElse) {  // I20
  Keep(1, 1);
  EXPECT_TRUE(undo_->has_open_chunks());
  FillState(7);
  EXPECT_EQ(Restore(),
            (std::vector<RestoredChunk>{{1, Generation(2), Step(9)}}));
  EXPECT_FALSE(undo_->has_open_chunks());
  for (int i = 0; i < 5000; ++i) {
    const float expected = i >= 2048 && i < 4096 ? 1 : 7;
    ASSERT_EQ(state_->master()[i], expected) << i;
    ASSERT_EQ(state_->moment(0)[i], expected + 0.25f) << i;
    ASSERT_EQ(state_->moment(1)[i], expected + 0.5f) << i;
  }
  EXPECT_FALSE(undo_->IsDone(1, kWord));
}

TEST_F(UndoLogTest, AWiderLogGoesOnInItsPlace) {  // I20
  Keep(1, 1);
  undo_->Finish(1, 1, kWord);
  const int num_threads = kThreads + 3;
  std::vector<std::byte> bytes(undo_->BytesFor(num_threads));
  undo_->CopyTo(bytes, num_threads);
  auto wider = UndoLog::Open(std::make_unique<BorrowedBuffer>(&bytes), layout_,
                             NodeRank(0), kMoments);
  ASSERT_THAT(wider, IsOk());
  EXPECT_EQ((*wider)->num_threads(), num_threads);
  EXPECT_TRUE((*wider)->IsDone(1, kWord));
  EXPECT_FALSE((*wider)->IsDone(0, kWord));
  EXPECT_FALSE((*wider)->has_open_chunks());
  (*wider)->Begin(num_threads - 1, 2, kWord);
  EXPECT_TRUE((*wider)->has_open_chunks());
  // A log that was replaced is none.
  (*wider)->Retire();
  EXPECT_THAT(UndoLog::Open(std::make_unique<BorrowedBuffer>(&bytes), layout_,
                            NodeRank(0), kMoments),
              StatusIs(absl::StatusCode::kDataLoss));
}

// Death in the middle of a chunk: what was not kept was not changed.
TEST_F(UndoLogTest, RestoresWhatWasKept) {  // I20
  for (const int kept : {0, 1, 17, 2047}) {
    FillState(1);
    Keep(1, 1, kept);
    FillState(7);
    EXPECT_EQ(Restore(),
              (std::vector<RestoredChunk>{{1, Generation(2), Step(9)}}));
    for (int i = 0; i < 5000; ++i) {
      const float expected = i >= 2048 && i < 2048 + kept ? 1 : 7;
      ASSERT_EQ(state_->master()[i], expected) << i;
      ASSERT_EQ(state_->moment(0)[i], expected + 0.25f) << i;
      ASSERT_EQ(state_->moment(1)[i], expected + 0.5f) << i;
    }
  }
}

TEST_F(UndoLogTest, ANewRecordHoldsNothingOfTheOneBefore) {  // I13
  Keep(1, 1);
  undo_->Finish(1, 1, kWord);
  FillState(7);
  undo_->Begin(1, 0, kWord);
  EXPECT_EQ(Restore().size(), 1u);
  EXPECT_EQ(state_->master()[0], 7);
}

TEST_F(UndoLogTest, RestoresOneChunkPerThread) {
  Keep(0, 0);
  Keep(2, 2);
  FillState(7);
  EXPECT_EQ(Restore().size(), 2u);
  EXPECT_EQ(state_->master()[0], 1);
  EXPECT_EQ(state_->master()[3000], 7);
  EXPECT_EQ(state_->master()[4999], 1);
}

TEST_F(UndoLogTest, AFinishedChunkStays) {
  Keep(0, 0);
  FillState(7);
  undo_->Finish(0, 0, kWord);
  EXPECT_FALSE(undo_->has_open_chunks());
  EXPECT_TRUE(Restore().empty());
  EXPECT_EQ(state_->master()[0], 7);
  EXPECT_TRUE(undo_->IsDone(0, kWord));
  EXPECT_FALSE(undo_->IsDone(0, proto::SequenceWord(2, 10)));
  EXPECT_FALSE(undo_->IsDone(0, proto::SequenceWord(3, 9)));
  undo_->Clear();
  EXPECT_FALSE(undo_->IsDone(0, kWord));
}

// The same over raw memory, by the offsets of the format's description.
class UndoFormatTest : public UndoLogTest {
 protected:
  static constexpr uint64_t kDone = 4096;
  static constexpr uint64_t kRecords = 8192;
  static constexpr uint64_t kRecordBytes = 28672;  // 64 + 3 x 2,048 x 4

  UndoFormatTest() {
    auto log =
        UndoLog::Create(&probe_, layout_, NodeRank(0), kMoments, kThreads);
    EXPECT_THAT(log, IsOk());
    bytes_ = probe_.last;
    EXPECT_THAT(Open(), IsOk());
  }

  // Takes a copy of what a new log looks like.
  class ProbeDevice final : public device::Device {
   public:
    const device::Capabilities& capabilities() const override { return caps_; }
    absl::StatusOr<std::unique_ptr<device::SharedBuffer>> AllocateShared(
        uint64_t size, std::string_view) override {
      last.assign(size, std::byte{0});
      return std::make_unique<BorrowedBuffer>(&last);
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
        uint64_t, std::string_view) override {
      return absl::UnimplementedError("not asked for");
    }
    std::unique_ptr<device::Queue> CreateQueue() override { return nullptr; }
    uint64_t shared_bytes_in_use() const override { return 0; }
    uint64_t private_bytes_in_use() const override { return 0; }

    std::vector<std::byte> last;

   private:
    device::Capabilities caps_{"probe", true, true, 0};
  };

  absl::Status Open() {
    auto log = UndoLog::Open(std::make_unique<BorrowedBuffer>(&bytes_), layout_,
                             NodeRank(0), kMoments);
    if (!log.ok()) return log.status();
    undo_ = *std::move(log);
    return absl::OkStatus();
  }

  template <typename T>
  void Put(uint64_t offset, T value) {
    std::memcpy(bytes_.data() + offset, &value, sizeof(value));
  }

  ProbeDevice probe_;
  std::vector<std::byte> bytes_;
};

TEST_F(UndoFormatTest, LiesWhereTheHeaderSays) {
  ASSERT_EQ(bytes_.size(), kRecords + kThreads * kRecordBytes);
  Keep(1, 2);
  uint64_t record[4];
  std::memcpy(record, bytes_.data() + kRecords + kRecordBytes, sizeof(record));
  EXPECT_EQ(record[0], kWord);
  EXPECT_EQ(record[1], 2u);
  EXPECT_EQ(record[2], 912u);  // 904 elements and padding
  EXPECT_EQ(record[3], 904u);
  float value = 0;
  std::memcpy(&value, bytes_.data() + kRecords + kRecordBytes + 64 + 2048 * 4,
              sizeof(value));
  EXPECT_EQ(value, 1.25f);  // the first moment
  undo_->Finish(1, 2, kWord);
  uint64_t done = 0;
  std::memcpy(&done, bytes_.data() + kDone + 2 * 8, sizeof(done));
  EXPECT_EQ(done, kWord);
}

// Death between `done = step` and `word = 0`: restoring now would lose the
// update for ever, because the chunk counts as done.
TEST_F(UndoFormatTest, ADoneChunkIsNotRestoredThoughItsRecordIsValid) {
  Keep(0, 0);
  FillState(7);
  Put<uint64_t>(kDone, kWord);
  EXPECT_TRUE(Restore().empty());
  EXPECT_EQ(state_->master()[0], 7);
  EXPECT_FALSE(undo_->has_open_chunks());
}

// Death while the record is being opened: `word` is still 0.
TEST_F(UndoFormatTest, AnUnfinishedRecordIsIgnored) {
  Put<uint64_t>(kRecords + 8, 1);
  Put<uint64_t>(kRecords + 16, 999);
  EXPECT_TRUE(Restore().empty());
  EXPECT_EQ(state_->master()[0], 1);
}

TEST_F(UndoFormatTest, DamageIsDataLoss) {  // I27
  constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
  Keep(0, 0);
  Put<int64_t>(kRecords + 8, 3);
  EXPECT_THAT(undo_->RestoreOpenChunks(state_.get()), StatusIs(kDataLoss));
  Put<int64_t>(kRecords + 8, -1);
  EXPECT_THAT(undo_->RestoreOpenChunks(state_.get()), StatusIs(kDataLoss));
  Put<int64_t>(kRecords + 8, 0);
  Put<int64_t>(kRecords + 16, int64_t{1} << 40);
  EXPECT_THAT(undo_->RestoreOpenChunks(state_.get()), StatusIs(kDataLoss));
  Put<int64_t>(kRecords + 16, 2048);
  for (const int64_t saved : {int64_t{-1}, int64_t{2049}, int64_t{1} << 62}) {
    Put<int64_t>(kRecords + 24, saved);
    EXPECT_THAT(undo_->RestoreOpenChunks(state_.get()), StatusIs(kDataLoss));
  }

  const std::vector<std::byte> good = bytes_;
  bytes_[0] ^= std::byte{1};
  EXPECT_THAT(Open(), StatusIs(kDataLoss));
  bytes_ = good;
  Put<uint32_t>(8, 3);
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               "its undo logs are kept in format 3, this "
                               "version knows 2"));
  bytes_[0] ^= std::byte{1};
  EXPECT_THAT(Open(), StatusIs(kDataLoss)) << "not one of any version";
  bytes_ = good;
  Put<uint32_t>(16, ~0u);  // threads
  EXPECT_THAT(Open(), StatusIs(kDataLoss));
  bytes_ = good;
  bytes_.resize(bytes_.size() - 1);
  EXPECT_THAT(Open(), StatusIs(kDataLoss));
  bytes_.clear();
  EXPECT_THAT(Open(), StatusIs(kDataLoss));
  bytes_ = good;
  EXPECT_THAT(Open(), IsOk());
}

}  // namespace
}  // namespace ballast::optimizer
