#include "server/ipc/control_block_view.h"

#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/segment.h"
#include "server/base/status_matchers.h"

namespace ballast::ipc {
namespace {

using base::IsOk;
using base::StatusIs;
using proto::ControlBlockLayout;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class ControlBlockViewTest : public ::testing::Test {
 protected:
  static constexpr int kBuckets = 600;
  static constexpr int kGroups = 3;

  void SetUp() override {
    auto segment = base::Segment::Create(
        "control", ControlBlockView::SizeBytes(kBuckets, kGroups));
    ASSERT_THAT(segment, IsOk());
    segment_ = *std::move(segment);
    auto view = ControlBlockView::Create(segment_.bytes(), kBuckets, kGroups);
    ASSERT_THAT(view, IsOk());
    view_ = *view;
  }

  // The worker's side, by the header alone.
  template <typename T>
  T* At(uint64_t offset) {
    return reinterpret_cast<T*>(segment_.bytes().data() + offset);
  }
  const proto::ControlBlockHeader& header() {
    return *At<proto::ControlBlockHeader>(0);
  }
  proto::DaemonArea& daemon_area() {
    return *At<proto::DaemonArea>(header().daemon_area_offset);
  }
  proto::WorkerArea& worker_area() {
    return *At<proto::WorkerArea>(header().worker_area_offset);
  }

  base::Segment segment_;
  ControlBlockView view_;
};

TEST_F(ControlBlockViewTest, TheHeaderSaysWhereThingsAre) {
  EXPECT_EQ(header().magic, proto::kControlBlockMagic);
  EXPECT_EQ(header().version, proto::kControlBlockVersion);
  EXPECT_EQ(header().num_buckets, kBuckets);
  EXPECT_EQ(header().num_groups, kGroups);
  EXPECT_EQ(header().size_bytes, segment_.size_bytes());
  const uint64_t offsets[] = {
      header().daemon_area_offset, header().worker_area_offset,
      header().groups_offset,      header().cursor_offset,
      header().pushed_offset,      header().consumed_offset,
      header().published_offset,   header().rank0_cursor_offset,
      header().size_bytes};
  EXPECT_EQ(offsets[0], 4096u);
  EXPECT_EQ(offsets[1], 8192u);
  EXPECT_EQ(offsets[2], 12288u);
  for (size_t i = 0; i + 1 < std::size(offsets); ++i) {
    EXPECT_LT(offsets[i], offsets[i + 1]);
    EXPECT_EQ(offsets[i] % proto::kPageSize, 0u);
  }
}

// Units have words of their own, and a text for the last refusal.
TEST(ControlBlockGatherTest, WordsAreWhereTheWorkerLooks) {
  constexpr int kBuckets = 3;
  constexpr int kGroups = 2;
  constexpr int kUnits = 700;
  base::Segment segment = *base::Segment::Create(
      "control", ControlBlockView::SizeBytes(kBuckets, kGroups, kUnits));
  auto created =
      ControlBlockView::Create(segment.bytes(), kBuckets, kGroups, kUnits);
  ASSERT_THAT(created, base::IsOk());
  ControlBlockView view = *created;
  const auto layout = ControlBlockLayout::For(kBuckets, kGroups, kUnits);
  std::byte* const bytes = segment.bytes().data();
  const auto word = [&](uint64_t offset, int unit) {
    return reinterpret_cast<proto::Word*>(bytes + offset) + unit;
  };
  word(layout.wanted_offset, 699)->store(7);
  EXPECT_EQ(view.ReadWanted(699), 7u);
  EXPECT_EQ(view.ReadWanted(698), 0u);
  view.StoreHeld(699, proto::HeldWord(7, proto::HeldState::kHeld, 12));
  EXPECT_EQ(view.ReadHeld(699),
            proto::HeldWord(7, proto::HeldState::kHeld, 12));
  EXPECT_EQ(view.ReadHeld(698), 0u);
  const uint64_t held = word(layout.held_offset, 699)->load();
  EXPECT_TRUE(proto::IsHeldFor(held, 7));
  EXPECT_FALSE(proto::IsHeldFor(held, 9));
  EXPECT_EQ(proto::StateOfHeld(held), proto::HeldState::kHeld);
  EXPECT_EQ(proto::VersionOfHeld(held), 12);
  EXPECT_EQ(layout.size_bytes, segment.size_bytes());
  const auto* const area = reinterpret_cast<const proto::DaemonArea*>(
      bytes + layout.daemon_area_offset);
  view.StoreRefusal(absl::StatusCode::kResourceExhausted,
                    std::string(2 * proto::kMaxErrorBytes, 'x'));
  EXPECT_EQ(area->refusal.load(), 2u);
  EXPECT_EQ(area->refusal_code, 8);
  EXPECT_EQ(strnlen(area->refusal_text, proto::kMaxErrorBytes),
            proto::kMaxErrorBytes - 1);
  EXPECT_THAT(ControlBlockView::Create(segment.bytes(), 1, 1, -1),
              base::StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(
      ControlBlockView::Create(segment.bytes(), 1, 1, proto::kMaxUnits + 1),
      base::StatusIs(absl::StatusCode::kInvalidArgument));
}

// I4: every count that is allowed has a layout without overlap.
TEST(ControlBlockLayoutTest, FitsEveryCount) {
  for (const uint32_t buckets :
       {0u, 1u, 511u, 512u, 513u, proto::kMaxBuckets}) {
    for (const uint32_t groups : {1u, 64u, 65u, proto::kMaxParamGroups}) {
      const auto layout = ControlBlockLayout::For(buckets, groups);
      EXPECT_GE(layout.cursor_offset - layout.groups_offset,
                groups * sizeof(proto::GroupValues));
      EXPECT_EQ(layout.pushed_offset - layout.cursor_offset,
                proto::kMaxCursorBytes);
      EXPECT_GE(layout.consumed_offset - layout.pushed_offset, buckets * 8u);
      EXPECT_GE(layout.published_offset - layout.consumed_offset, buckets * 8u);
      EXPECT_GE(layout.rank0_cursor_offset - layout.published_offset,
                buckets * 8u);
      EXPECT_EQ(layout.size_bytes - layout.rank0_cursor_offset,
                proto::kMaxCursorBytes);
    }
  }
}

TEST_F(ControlBlockViewTest, WordsAreWhereTheWorkerLooks) {
  const BucketId bucket(513);
  At<proto::Word>(header().pushed_offset)[513].store(
      proto::SequenceWord(2, 77));
  EXPECT_EQ(view_.ReadPushed(bucket), proto::SequenceWord(2, 77));
  EXPECT_EQ(view_.ReadPushed(BucketId(512)), 0u);
  view_.StoreConsumed(bucket, proto::SequenceWord(2, 76));
  view_.StorePublished(bucket, proto::SequenceWord(2, 75));
  EXPECT_EQ(At<proto::Word>(header().consumed_offset)[513].load(),
            proto::SequenceWord(2, 76));
  EXPECT_EQ(At<proto::Word>(header().published_offset)[513].load(),
            proto::SequenceWord(2, 75));
  view_.StoreOpen(Generation(2), Step(78));
  EXPECT_EQ(daemon_area().open.load(), proto::SequenceWord(2, 78));
}

TEST_F(ControlBlockViewTest, ShowsWhatRank0Committed) {
  for (const std::string& cursor : {std::string("thirteen byte"), std::string(),
                                    std::string(proto::kMaxCursorBytes, 'x')}) {
    const uint64_t word = proto::SequenceWord(2, 76 + cursor.size());
    view_.StoreRank0Cursor(word, cursor);
    EXPECT_EQ(daemon_area().rank0_cursor_word.load(), word);
    EXPECT_EQ(std::string(At<char>(header().rank0_cursor_offset),
                          daemon_area().rank0_cursor_bytes),
              cursor);
  }
}

TEST_F(ControlBlockViewTest, ReadsTheStepsValues) {
  auto* const groups = At<proto::GroupValues>(header().groups_offset);
  groups[2].lr = 0.25;
  groups[2].nesterov = 1;
  // Of no multiple of 8 bytes.
  const std::string text = "cursor: 13 by";
  std::memcpy(At<char>(header().cursor_offset), text.data(), text.size());
  worker_area().cursor_bytes = text.size();
  worker_area().step_input.store(proto::SequenceWord(1, 5));
  EXPECT_EQ(view_.ReadStepInput(), proto::SequenceWord(1, 5));
  std::vector<proto::GroupValues> values(kGroups);
  std::string cursor;
  ASSERT_THAT(view_.ReadStepValues(values, &cursor), IsOk());
  EXPECT_EQ(values[2].lr, 0.25);
  EXPECT_EQ(values[2].nesterov, 1);
  EXPECT_EQ(cursor, text);
}

// I26
TEST_F(ControlBlockViewTest, AHostileCursorSizeIsRefused) {
  std::vector<proto::GroupValues> values(kGroups);
  std::string cursor;
  worker_area().cursor_bytes = proto::kMaxCursorBytes;
  EXPECT_THAT(view_.ReadStepValues(values, &cursor), IsOk());
  EXPECT_EQ(cursor.size(), proto::kMaxCursorBytes);
  for (const uint32_t size : {proto::kMaxCursorBytes + 1, UINT32_MAX}) {
    worker_area().cursor_bytes = size;
    EXPECT_THAT(view_.ReadStepValues(values, &cursor), StatusIs(kInvalid));
  }
}

// I26: a worker that overwrites the header or its offsets moves nothing.
TEST_F(ControlBlockViewTest, TheHeaderIsNeverReadBack) {
  const uint64_t published = header().published_offset;
  std::memset(segment_.bytes().data(), 0xff, proto::kPageSize);
  view_.StorePublished(BucketId(1), 42);
  EXPECT_EQ(At<proto::Word>(published)[1].load(), 42u);
}

TEST_F(ControlBlockViewTest, ACommitWritesItsRecordFirst) {
  StepReport report;
  report.generation = Generation(3);
  report.outcome = proto::StepOutcome::kCommitted;
  for (int64_t step = 9; step <= 10; ++step) {
    report.step = Step(step);
    report.weight_version = WeightVersion(step);
    report.grad_norm = 1.5 * step;
    report.stage_seconds[5] = 0.5;
    report.quality[0].sampled = 100 * step;
    report.quality[0].residual_norm = 0.25;
    report.quality[0].num_wider = 3;
    report.quality[1].relative_error = 0.5 * step;
    view_.StoreCommitted(report);
  }
  EXPECT_EQ(daemon_area().committed.load(), proto::SequenceWord(3, 10));
  for (int64_t step = 9; step <= 10; ++step) {
    const proto::StepRecord& record = daemon_area().records[step & 1];
    EXPECT_EQ(record.word.load(), proto::SequenceWord(3, step));
    EXPECT_EQ(record.outcome, proto::StepOutcome::kCommitted);
    EXPECT_EQ(record.weight_version, step);
    EXPECT_EQ(record.grad_norm, 1.5 * step);
    EXPECT_EQ(record.stage_seconds[5], 0.5);
    const proto::StepQuality& quality = daemon_area().qualities[step & 1];
    EXPECT_EQ(quality.word.load(), proto::SequenceWord(3, step));
    EXPECT_EQ(quality.paths[0].sampled, 100u * step);
    EXPECT_EQ(quality.paths[0].residual_norm, 0.25);
    EXPECT_EQ(quality.paths[0].num_wider, 3u);
    EXPECT_EQ(quality.paths[1].relative_error, 0.5 * step);
  }
}

TEST_F(ControlBlockViewTest, AFailureIsEvenAndCut) {
  view_.StoreFailure(absl::StatusCode::kAborted, false, 7, "first");
  EXPECT_EQ(daemon_area().failure.load(), 2u);
  EXPECT_STREQ(daemon_area().failure_text, "first");
  view_.StoreFailure(absl::StatusCode::kDataLoss, true, 8,
                     std::string(5000, 'x'));
  EXPECT_EQ(daemon_area().failure.load(), 4u);
  EXPECT_EQ(daemon_area().failure_code,
            static_cast<int>(absl::StatusCode::kDataLoss));
  EXPECT_EQ(daemon_area().failure_fatal, 1u);
  EXPECT_EQ(daemon_area().failure_word, 8u);
  EXPECT_EQ(std::strlen(daemon_area().failure_text), proto::kMaxErrorBytes - 1);
  // I26: whatever a worker makes of the count, it is even afterwards.
  daemon_area().failure.store(UINT32_MAX);
  view_.StoreFailure(absl::StatusCode::kAborted, false, 9, "third");
  EXPECT_EQ(daemon_area().failure.load() % 2, 0u);
}

TEST_F(ControlBlockViewTest, ACloseIsOneWord) {
  EXPECT_EQ(daemon_area().closed.load(), 0u);
  view_.StoreClosed();
  EXPECT_EQ(daemon_area().closed.load(), 1u);
}

TEST_F(ControlBlockViewTest, WakeChangesTheWord) {
  view_.Wake();
  view_.Wake();
  EXPECT_EQ(daemon_area().wake.load(), 2u);
}

TEST_F(ControlBlockViewTest, AdoptKeepsTheContent) {
  view_.StoreOpen(Generation(1), Step(4));
  auto next = ControlBlockView::Adopt(segment_.bytes(), kBuckets, kGroups);
  ASSERT_THAT(next, IsOk());
  EXPECT_EQ(daemon_area().open.load(), proto::SequenceWord(1, 4));
}

TEST_F(ControlBlockViewTest, RefusesCountsAndSizesOutOfBounds) {
  const auto memory = segment_.bytes();
  EXPECT_THAT(ControlBlockView::Create(memory, -1, 1), StatusIs(kInvalid));
  EXPECT_THAT(ControlBlockView::Create(memory, proto::kMaxBuckets + 1, 1),
              StatusIs(kInvalid));
  EXPECT_THAT(ControlBlockView::Create(memory, 1, 0), StatusIs(kInvalid));
  EXPECT_THAT(ControlBlockView::Create(memory, 1, proto::kMaxParamGroups + 1),
              StatusIs(kInvalid));
  EXPECT_THAT(ControlBlockView::Create(memory, proto::kMaxBuckets, 1),
              StatusIs(kInvalid));
  EXPECT_THAT(ControlBlockView::Create(memory.subspan(8), kBuckets, kGroups),
              StatusIs(kInvalid));
}

}  // namespace
}  // namespace ballast::ipc
