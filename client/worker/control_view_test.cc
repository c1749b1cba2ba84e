#include "client/worker/control_view.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/control_block.h"
#include "server/base/status_matchers.h"

namespace ballast::worker {
namespace {

using base::IsOk;
using base::StatusIs;
using proto::SequenceWord;

constexpr int kBuckets = 3;
constexpr int kGroups = 2;

// The daemon's side, by hand.
class Block {
 public:
  Block() : memory_(Layout().size_bytes / 8) {
    header().magic = proto::kControlBlockMagic;
    header().version = proto::kControlBlockVersion;
    header().num_buckets = kBuckets;
    header().num_groups = kGroups;
    header().size_bytes = Layout().size_bytes;
  }

  static proto::ControlBlockLayout Layout() {
    return proto::ControlBlockLayout::For(kBuckets, kGroups);
  }
  std::span<std::byte> bytes() {
    return std::as_writable_bytes(std::span(memory_));
  }
  template <typename T>
  T* at(uint64_t offset) {
    return reinterpret_cast<T*>(bytes().data() + offset);
  }
  proto::ControlBlockHeader& header() {
    return *at<proto::ControlBlockHeader>(0);
  }
  proto::DaemonArea& daemon() {
    return *at<proto::DaemonArea>(Layout().daemon_area_offset);
  }

 private:
  std::vector<uint64_t> memory_;
};

absl::StatusOr<ControlView> View(Block& block) {
  return ControlView::Create(block.bytes(), kBuckets, kGroups);
}

TEST(ControlViewTest, RefusesWhatIsNotThisBlock) {  // I27
  const auto kDataLoss = absl::StatusCode::kDataLoss;
  Block block;
  EXPECT_THAT(View(block), IsOk());
  EXPECT_THAT(ControlView::Create(block.bytes().first(64), kBuckets, kGroups),
              StatusIs(kDataLoss));
  EXPECT_THAT(ControlView::Create(block.bytes().first(block.bytes().size() - 8),
                                  kBuckets, kGroups),
              StatusIs(kDataLoss));
  EXPECT_THAT(ControlView::Create(block.bytes(), kBuckets + 1, kGroups),
              StatusIs(kDataLoss));
  EXPECT_THAT(ControlView::Create(block.bytes(), kBuckets, kGroups - 1),
              StatusIs(kDataLoss));
  const uint32_t later = proto::kControlBlockVersion + 1;
  block.header().version = later;
  EXPECT_THAT(View(block),
              StatusIs(kDataLoss, "format " + std::to_string(later)));
  block.header().version = proto::kControlBlockVersion;
  block.header().magic = 0;
  EXPECT_THAT(View(block), StatusIs(kDataLoss));
}

TEST(ControlViewTest, InputAndPushesLieWhereTheDaemonLooks) {
  Block block;
  ControlView view = *View(block);
  std::vector<proto::GroupValues> groups(kGroups);
  groups[1].lr = 0.25;
  view.StoreInput(SequenceWord(1, 7), groups, "here");
  view.StorePushed(2, SequenceWord(1, 7));
  const auto layout = Block::Layout();
  EXPECT_EQ(block.at<proto::GroupValues>(layout.groups_offset)[1].lr, 0.25);
  EXPECT_EQ(std::string(block.at<char>(layout.cursor_offset), 4), "here");
  const auto* area = block.at<proto::WorkerArea>(layout.worker_area_offset);
  EXPECT_EQ(area->cursor_bytes, 4);
  EXPECT_EQ(area->step_input.load(), SequenceWord(1, 7));
  EXPECT_EQ(block.at<proto::Word>(layout.pushed_offset)[2].load(),
            SequenceWord(1, 7));
  EXPECT_EQ(block.at<proto::Word>(layout.pushed_offset)[1].load(), 0);
}

TEST(ControlViewTest, RecordIsReadOnlyUnderItsOwnWord) {  // I1
  Block block;
  ControlView view = *View(block);
  const uint64_t word = SequenceWord(1, 5);
  EXPECT_FALSE(view.Record(word));
  proto::StepRecord& record = block.daemon().records[1];
  record.outcome = proto::StepOutcome::kSkipped;
  record.grad_norm = 2.5;
  record.weight_version = 5;
  record.stage_seconds[5] = 0.125;
  record.word = word;
  const auto result = view.Record(word);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->step, 5);
  EXPECT_TRUE(result->skipped);
  EXPECT_EQ(result->grad_norm, 2.5);
  EXPECT_EQ(result->weight_version, 5);
  EXPECT_EQ(result->stage_seconds[5], 0.125);
  EXPECT_FALSE(view.Record(SequenceWord(1, 7)));  // same slot
  EXPECT_FALSE(view.Record(SequenceWord(2, 5)));
}

TEST(ControlViewTest, QualityIsReadOnlyUnderTheRecordsWord) {  // I1, I21
  Block block;
  ControlView view = *View(block);
  const uint64_t word = SequenceWord(1, 5);
  block.daemon().records[1].word = word;
  // A daemon without it leaves zeros, or what another one wrote of a step
  // before: not measured, which is not 0.
  proto::StepQuality& quality = block.daemon().qualities[1];
  quality.paths[0] = {64, 0.25, 0.125, 2, 3, 0};
  quality.paths[1] = {32, 0.5, 0, 0, 0, 0};
  for (const uint64_t other : {uint64_t{0}, SequenceWord(1, 3)}) {
    quality.word = other;
    const auto result = view.Record(word);
    ASSERT_TRUE(result);
    EXPECT_EQ(result->gradients.sampled, 0);
    EXPECT_TRUE(std::isnan(result->gradients.relative_error));
    EXPECT_TRUE(std::isnan(result->gradients.clipped_share));
    EXPECT_TRUE(std::isnan(result->gradients.residual_norm));
    EXPECT_TRUE(std::isnan(result->weights.relative_error));
  }
  quality.word = word;
  const auto result = view.Record(word);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->gradients.sampled, 64);
  EXPECT_EQ(result->gradients.relative_error, 0.25);
  EXPECT_EQ(result->gradients.clipped_share, 0.125);
  EXPECT_EQ(result->gradients.residual_norm, 2);
  EXPECT_EQ(result->gradients.num_wider, 3);
  EXPECT_EQ(result->weights.sampled, 32);
  EXPECT_EQ(result->weights.relative_error, 0.5);
  EXPECT_EQ(result->weights.clipped_share, 0);
}

TEST(ControlViewTest, Rank0sCursorIsReadOnlyUnderItsOwnWord) {  // I1
  Block block;
  ControlView view = *View(block);
  const uint64_t word = SequenceWord(1, 5);
  std::string cursor;
  EXPECT_FALSE(view.ReadRank0Cursor(word, &cursor));
  const std::string text = "seven b";  // no whole number of words
  std::memcpy(block.at<char>(Block::Layout().rank0_cursor_offset), text.data(),
              text.size());
  block.daemon().rank0_cursor_bytes = text.size();
  block.daemon().rank0_cursor_word = word;
  EXPECT_TRUE(view.ReadRank0Cursor(word, &cursor));
  EXPECT_EQ(cursor, text);
  EXPECT_FALSE(view.ReadRank0Cursor(SequenceWord(1, 6), &cursor));
  block.daemon().rank0_cursor_bytes = proto::kMaxCursorBytes + 1;  // I27
  EXPECT_FALSE(view.ReadRank0Cursor(word, &cursor));
}

TEST(ControlViewTest, FailureIsSeenOnceAndNeverHalfWritten) {
  Block block;
  ControlView view = *View(block);
  EXPECT_FALSE(view.FailureAfter(0));
  block.daemon().failure = 1;  // being written
  EXPECT_FALSE(view.FailureAfter(0));
  block.daemon().failure_code = static_cast<int>(absl::StatusCode::kAborted);
  block.daemon().failure_word = SequenceWord(1, 3);
  std::strcpy(block.daemon().failure_text, "rank 1 left");
  block.daemon().failure = 2;
  const auto failure = view.FailureAfter(0);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code, absl::StatusCode::kAborted);
  EXPECT_EQ(failure->text, "rank 1 left");
  EXPECT_EQ(failure->word, SequenceWord(1, 3));
  EXPECT_FALSE(failure->is_fatal);
  EXPECT_FALSE(view.FailureAfter(failure->count));
}

TEST(ControlViewTest, ACloseIsRecordedByOneWordOnly) {  // I27
  Block block;
  ControlView view = *View(block);
  EXPECT_FALSE(view.IsClosed());
  block.daemon().closed = 2;
  EXPECT_FALSE(view.IsClosed());
  block.daemon().closed = 1;
  EXPECT_TRUE(view.IsClosed());
}

TEST(ControlViewTest, FailureTextWithoutEndStaysInside) {  // I27
  Block block;
  ControlView view = *View(block);
  std::memset(block.daemon().failure_text, 'x', proto::kMaxErrorBytes);
  block.daemon().failure_code = 99;
  block.daemon().failure = 2;
  const auto failure = view.FailureAfter(0);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->text.size(), proto::kMaxErrorBytes);
  EXPECT_EQ(failure->code, absl::StatusCode::kUnknown);
}

}  // namespace
}  // namespace ballast::worker
