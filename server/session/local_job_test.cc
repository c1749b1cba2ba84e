#include "server/session/local_job.h"

#include <fcntl.h>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/base/vault.h"
#include "server/device/host/host_device.h"
#include "server/device/kept_device.h"
#include "server/session/session_testing.h"

namespace ballast::session {
namespace {

using base::IsOk;
using base::StatusIs;
using testing::ElementsAre;
using testing::IsEmpty;
using Pushed = FakeObserver::Push;

constexpr int kWorkers = 2;

class LocalJobTest : public testing::Test {
 protected:
  LocalJobTest() : executor_(1), device_({}, &executor_) {
    AttachRequest request = SmallRequest("job", 0, kWorkers);
    layout::Options options;
    options.bucket_bytes = request.job.bucket_bytes;
    auto layout =
        layout::Layout::Create(request.job.tensors, {1, kWorkers}, 1, options);
    EXPECT_THAT(layout, IsOk());
    auto job = LocalJob::Create(&device_, &executor_, request.job,
                                *std::move(layout), NodeRank(0));
    EXPECT_THAT(job, IsOk());
    job_ = *std::move(job);
    job_->set_observer(&observer_);
    for (int i = 0; i < kWorkers; ++i) {
      links_.push_back(std::make_unique<FakeLink>(&processes_[i], 100 + i));
    }
  }

  absl::Status Attach(int rank) {
    return job_->Attach(LocalRank(rank), links_[rank].get(), true).status();
  }
  void Begin(int rank) {
    job_->Begin(LocalRank(rank), [this, rank](absl::StatusOr<BeginReply> r) {
      replies_[rank] = std::move(r);
    });
  }
  void Start() {
    for (int i = 0; i < kWorkers; ++i) ASSERT_THAT(Attach(i), IsOk());
    for (int i = 0; i < kWorkers; ++i) Begin(i);
    job_->Open(Generation(1), Step(1));
  }
  void Push(int rank, int bucket, uint64_t word) {
    processes_[rank].pushed(bucket)->store(word);
    job_->OnDoorbell(LocalRank(rank));
  }
  void Commit(int step) {
    ipc::StepReport report;
    report.generation = Generation(1);
    report.step = Step(step);
    report.outcome = proto::StepOutcome::kCommitted;
    report.optimizer_step = step;
    job_->Committed(report, "rank 0's");
    job_->Open(Generation(1), Step(step + 1));
    for (int b = 0; b < 3; ++b) {
      job_->Consumed(BucketId(b), Generation(1), Step(step));
      job_->Published(BucketId(b), Generation(1), Step(step));
    }
  }

  base::SimExecutor executor_;
  device::HostDevice device_;
  FakeProcess processes_[kWorkers + 1];
  std::vector<std::unique_ptr<FakeLink>> links_;
  FakeObserver observer_;
  std::unique_ptr<LocalJob> job_;
  absl::StatusOr<BeginReply> replies_[kWorkers];
};

constexpr uint64_t Word(int64_t generation, int64_t step) {
  return proto::SequenceWord(generation, step);
}

TEST_F(LocalJobTest, SecondWorkerWithTheSameRankLearnsThePid) {
  ASSERT_THAT(Attach(1), IsOk());
  FakeLink other(&processes_[2], 4711);
  EXPECT_THAT(job_->Attach(LocalRank(1), &other, true),
              StatusIs(absl::StatusCode::kAlreadyExists, "pid 101"));
}

TEST_F(LocalJobTest, BeginWaitsForAllAndForTheFirstWeights) {
  ASSERT_THAT(Attach(0), IsOk());
  ASSERT_THAT(Attach(1), IsOk());
  Begin(0);
  EXPECT_EQ(observer_.all_ready, 0);
  EXPECT_EQ(job_->Missing(), "rank 1 (pid 101) has not begun");
  Begin(1);
  EXPECT_EQ(observer_.all_ready, 1);
  EXPECT_EQ(job_->state(), JobState::kLoading);
  EXPECT_THAT(replies_[0], StatusIs(absl::StatusCode::kUnknown));
  job_->Open(Generation(1), Step(1));
  ASSERT_THAT(replies_[0], IsOk());
  EXPECT_EQ(replies_[0]->open_step, Step(1));
  EXPECT_EQ(replies_[1]->weight_version, WeightVersion(0));
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_EQ(processes_[0].daemon()->open.load(), Word(1, 1));
  EXPECT_EQ(processes_[0].published(2)->load(), Word(1, 0));
}

TEST_F(LocalJobTest, InitialValuesComeFromRankZeroAlone) {
  ASSERT_THAT(Attach(0), IsOk());
  ASSERT_THAT(Attach(1), IsOk());
  EXPECT_EQ(processes_[1].segments.count(proto::SegmentKind::kInitial), 0);
  auto& initial = processes_[0].segments.at(proto::SegmentKind::kInitial);
  initial.bytes()[5] = std::byte{42};
  EXPECT_EQ(job_->weights()[5], std::byte{0});  // not before Begin
  Begin(0);
  EXPECT_EQ(job_->weights()[5], std::byte{42});
  initial.bytes()[5] = std::byte{43};  // too late
  Begin(1);
  EXPECT_EQ(job_->weights()[5], std::byte{42});
}

TEST_F(LocalJobTest, RankZeroMustGiveInitialValues) {
  EXPECT_THAT(job_->Attach(LocalRank(0), links_[0].get(), false),
              StatusIs(absl::StatusCode::kFailedPrecondition, "rank 0"));
  EXPECT_EQ(job_->slot(LocalRank(0)).state(), SlotState::kMissing);
}

TEST_F(LocalJobTest, OnePushCountsOnce) {  // I19
  Start();
  Push(0, 1, Word(1, 1));
  Push(0, 1, Word(1, 1));
  job_->OnDoorbell(LocalRank(0));
  EXPECT_THAT(observer_.pushes, ElementsAre(Pushed{0, 1}));
  EXPECT_EQ(job_->buckets_pushed(LocalRank(0)), 1);
}

TEST_F(LocalJobTest, IgnoresAndCountsEveryOtherWord) {  // I26
  Start();
  const uint64_t bad[] = {Word(1, 2), Word(2, 1), Word(0, 1), UINT64_MAX,
                          1,          Word(1, 0), 1ull << 63};
  for (const uint64_t word : bad) Push(1, 0, word);
  EXPECT_THAT(observer_.pushes, IsEmpty());
  EXPECT_EQ(job_->slot(LocalRank(1)).ignored(), std::size(bad));
  job_->OnDoorbell(LocalRank(1));  // an old bad word is no news
  EXPECT_EQ(job_->slot(LocalRank(1)).ignored(), std::size(bad));
  Push(1, 0, Word(1, 1));
  EXPECT_THAT(observer_.pushes, ElementsAre(Pushed{1, 0}));
}

TEST_F(LocalJobTest, GoingBackAfterATakenPushChangesNothing) {
  Start();
  Push(0, 0, Word(1, 1));
  Push(0, 0, 0);
  Push(0, 0, Word(1, 1));
  EXPECT_THAT(observer_.pushes, ElementsAre(Pushed{0, 0}));
}

TEST_F(LocalJobTest, APushBeforeItsOpenIsSeenAtTheOpen) {
  Start();
  Push(0, 0, Word(1, 2));
  EXPECT_THAT(observer_.pushes, IsEmpty());
  Commit(1);
  EXPECT_THAT(observer_.pushes, ElementsAre(Pushed{0, 0}));
}

TEST_F(LocalJobTest, StepInputComesBeforeTheLastPushOnce) {
  Start();
  processes_[0].StoreInput(Word(1, 1), 0.1, "cursor");
  Push(0, 0, Word(1, 1));
  Push(0, 1, Word(1, 1));
  EXPECT_THAT(observer_.inputs,
              ElementsAre(std::pair<int, std::string>(0, "cursor")));
}

TEST_F(LocalJobTest, RefusesStepInputThatCannotBe) {  // I10, I26
  Start();
  processes_[1].StoreInput(Word(1, 1), std::nan(""), "");
  job_->OnDoorbell(LocalRank(1));
  ASSERT_EQ(observer_.refusals.size(), 1);
  EXPECT_THAT(observer_.refusals[0],
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "rank 1, step 1: param group 0: lr is nan"));
  processes_[0].StoreInput(Word(1, 1), 0.1, "");
  processes_[0].worker()->cursor_bytes = UINT32_MAX;
  job_->OnDoorbell(LocalRank(0));
  EXPECT_EQ(observer_.refusals.size(), 2);
  EXPECT_THAT(observer_.inputs, IsEmpty());
}

TEST_F(LocalJobTest, ReplacementIsToldStepCursorAndPushedBuckets) {
  Start();
  for (int i = 0; i < kWorkers; ++i) {
    processes_[i].StoreInput(Word(1, 1), 0.25, "at 1");
    job_->OnDoorbell(LocalRank(i));
  }
  Commit(1);
  Push(1, 2, Word(1, 2));
  auto& gradients = processes_[1].segments.at(proto::SegmentKind::kGradients);
  for (std::byte& byte : gradients.bytes()) byte = std::byte{7};

  job_->OnLinkGone(LocalRank(1), absl::UnavailableError("died"));
  EXPECT_THAT(observer_.lost, ElementsAre(1));
  EXPECT_EQ(job_->state(), JobState::kWaiting);
  EXPECT_EQ(job_->Missing(), "rank 1 (last pid 101) is gone");

  FakeLink next(&processes_[2], 202);
  const auto reply = job_->Attach(LocalRank(1), &next, false);
  ASSERT_THAT(reply, IsOk());
  EXPECT_TRUE(reply->resumed);
  EXPECT_EQ(reply->initial_bytes, 0);
  absl::StatusOr<BeginReply> begin;
  job_->Begin(LocalRank(1),
              [&](absl::StatusOr<BeginReply> r) { begin = std::move(r); });
  ASSERT_THAT(begin, IsOk());
  EXPECT_EQ(begin->open_step, Step(2));
  EXPECT_EQ(begin->cursor, "at 1");
  EXPECT_EQ(begin->optimizer_step, 1);
  EXPECT_EQ(begin->groups[0].lr, 0.25);
  EXPECT_THAT(begin->pushed_buckets, ElementsAre(2));
  EXPECT_EQ(begin->step_cursor, std::nullopt);
  EXPECT_EQ(begin->rank0_cursor, "rank 0's");
  EXPECT_EQ(observer_.all_ready, 2);
  // Its control block says the same.
  EXPECT_EQ(processes_[2].daemon()->open.load(), Word(1, 2));
  EXPECT_EQ(processes_[2].daemon()->committed.load(), Word(1, 1));
  EXPECT_EQ(processes_[2].daemon()->records[1].word.load(), Word(1, 1));
  EXPECT_EQ(processes_[2].published(0)->load(), Word(1, 1));
  // Unpushed gradients are zero, the pushed one is kept (I13, I19).
  const auto& layout = job_->layout();
  const size_t first = layout.place(TensorId(0)).gradient_offset;
  const size_t bias = layout.place(TensorId(1)).gradient_offset;
  EXPECT_EQ(job_->gradients(LocalRank(1))[first], std::byte{0});
  EXPECT_EQ(job_->gradients(LocalRank(1))[bias], std::byte{7});
  // A bucket that is in already does not count again.
  observer_.pushes.clear();
  processes_[2].pushed(2)->store(Word(1, 2));
  processes_[2].pushed(0)->store(Word(1, 2));
  job_->OnDoorbell(LocalRank(1));
  EXPECT_THAT(observer_.pushes, ElementsAre(Pushed{1, 0}));
}

TEST_F(LocalJobTest, ReplacementIsToldWhatItsFormerWorkerHandedOver) {
  Start();
  processes_[1].StoreInput(Word(1, 1), 0.25, "at 1");
  for (int b = 0; b < 3; ++b) Push(1, b, Word(1, 1));
  const auto begin_again = [&](int process) {
    job_->OnLinkGone(LocalRank(1), absl::UnavailableError("died"));
    links_.push_back(std::make_unique<FakeLink>(&processes_[process], 202));
    EXPECT_THAT(job_->Attach(LocalRank(1), links_.back().get(), false), IsOk());
    absl::StatusOr<BeginReply> begin;
    job_->Begin(LocalRank(1),
                [&](absl::StatusOr<BeginReply> r) { begin = std::move(r); });
    return begin;
  };
  auto begin = begin_again(2);
  ASSERT_THAT(begin, IsOk());
  EXPECT_THAT(begin->pushed_buckets, ElementsAre(0, 1, 2));
  EXPECT_EQ(begin->cursor, "");
  EXPECT_EQ(begin->step_cursor, "at 1");
  // Of a step that was voided nothing is in.
  job_->Aborted(Step(1), Generation(2), absl::AbortedError("again"));
  job_->Open(Generation(2), Step(1));
  begin = begin_again(1);
  ASSERT_THAT(begin, IsOk());
  EXPECT_THAT(begin->pushed_buckets, IsEmpty());
  EXPECT_EQ(begin->step_cursor, std::nullopt);
}

// A vault in this process.
class MapVault final : public base::Vault {
 public:
  absl::Status Put(std::string_view name, std::string_view note,
                   std::span<const int> fds) override {
    base::Kept kept{std::string(name), std::string(note), {}};
    for (const int fd : fds) {
      kept.fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    }
    items[kept.name] = std::move(kept);
    return absl::OkStatus();
  }
  absl::Status CheckHeld(std::string_view) const override {
    return absl::OkStatus();
  }
  void Remove(std::string_view name) override {
    items.erase(std::string(name));
  }
  device::KeptDevice::Found Memory() {
    device::KeptDevice::Found found;
    for (auto& [name, kept] : items) {
      if (name.find("worker") == 0) continue;
      found[name].Reset(fcntl(kept.fds[0].get(), F_DUPFD_CLOEXEC, 0));
    }
    return found;
  }
  std::map<std::string, base::Kept> items;
};

// The job in two lives of the daemon; the workers live on.
class TakenOverJobTest : public LocalJobTest {
 protected:
  TakenOverJobTest() {
    device_a_.emplace(&device_, &vault_);
    Make(&*device_a_);
    Start();
  }

  void Make(device::Device* device) {
    AttachRequest request = SmallRequest("job", 0, kWorkers);
    layout::Options options;
    options.bucket_bytes = request.job.bucket_bytes;
    auto layout =
        layout::Layout::Create(request.job.tensors, {1, kWorkers}, 1, options);
    auto job = LocalJob::Create(device, &executor_, request.job,
                                *std::move(layout), NodeRank(0), 0, &vault_);
    ASSERT_THAT(job, IsOk());
    job_ = *std::move(job);
    job_->set_observer(&observer_);
  }

  // The workers in `with` are still there; rank 1 has closed if `closed`.
  void Restart(std::vector<int> with, Step step, bool is_open,
               bool closed = false, Generation generation = Generation(1),
               const absl::Status& aborted = absl::OkStatus()) {
    job_.reset();
    observer_ = FakeObserver();
    device_b_.emplace(&device_, &vault_, vault_.Memory());
    Make(&*device_b_);
    for (const int rank : with) {
      job_->Adopt(LocalRank(rank), links_[rank].get(), closed && rank == 1);
    }
    job_->Restore(7, job_->spec().groups, {"cursor 0", "cursor 1"}, "cursor 0");
    job_->TakeOver(generation, step, is_open, aborted);
  }

  MapVault vault_;
  std::optional<device::KeptDevice> device_a_;
  std::optional<device::KeptDevice> device_b_;
};

TEST_F(TakenOverJobTest, WhatWasPushedMeanwhileCountsOnce) {  // I19
  const uint64_t word = proto::SequenceWord(1, 1);
  Push(0, 0, word);
  processes_[1].pushed(2)->store(word);  // nobody looked
  processes_[1].StoreInput(word, 0.5, "data");
  Restart({0, 1}, Step(1), /*is_open=*/true);
  // Nobody takes anything before the engine is there.
  job_->OnDoorbell(LocalRank(0));
  EXPECT_THAT(observer_.pushes, IsEmpty());
  job_->Open(Generation(1), Step(1));
  EXPECT_THAT(observer_.pushes, ElementsAre(Pushed{0, 0}, Pushed{1, 2}));
  EXPECT_EQ(observer_.inputs.size(), 1);
  job_->OnDoorbell(LocalRank(0));
  EXPECT_EQ(observer_.pushes.size(), 2);
  EXPECT_EQ(job_->state(), JobState::kRunning);
}

// Before it is known what the job does next: what the last worker gave to the
// step that is open here stays, whoever comes meanwhile.
TEST_F(TakenOverJobTest, AWorkerMayComeMeanwhile) {  // I19
  const uint64_t word = proto::SequenceWord(1, 1);
  processes_[1].pushed(2)->store(word);  // nobody looked
  processes_[1].StoreInput(word, 0.5, "data");
  Restart({0}, Step(1), /*is_open=*/true);
  FakeProcess process;
  FakeLink link(&process, 300);
  EXPECT_THAT(job_->Attach(LocalRank(1), &link, false).status(), base::IsOk());
  EXPECT_THAT(observer_.pushes, IsEmpty());
  job_->TakeOver(Generation(1), Step(1), /*is_open=*/true);
  job_->Open(Generation(1), Step(1));
  EXPECT_THAT(observer_.pushes, ElementsAre(Pushed{1, 2}));
  EXPECT_EQ(observer_.inputs.size(), 1);
}

// Links were lost, no daemon: what counted is told again, each once.
TEST_F(TakenOverJobTest, WhatCountedIsToldAgainAfterSuspend) {  // I19
  const uint64_t word = proto::SequenceWord(1, 1);
  Push(0, 0, word);
  EXPECT_EQ(observer_.pushes.size(), 1);
  job_->Suspend();
  Push(1, 2, word);
  EXPECT_EQ(observer_.pushes.size(), 1);  // nobody looks
  job_->TakeOver(Generation(1), Step(1), /*is_open=*/true);
  job_->Open(Generation(1), Step(1));
  EXPECT_THAT(observer_.pushes,
              ElementsAre(Pushed{0, 0}, Pushed{0, 0}, Pushed{1, 2}));
  job_->OnDoorbell(LocalRank(0));
  EXPECT_EQ(observer_.pushes.size(), 3);
}

// Recorded and, for one of two workers, not told when the daemon ended.
TEST_F(TakenOverJobTest, AnAbortIsToldOnce) {  // I23
  const absl::Status why = absl::InvalidArgumentError("lr differs");
  job_->Aborted(Step(1), Generation(2), why);
  job_->Open(Generation(2), Step(1));
  const auto failures = [this](int rank) {
    return processes_[rank].daemon()->failure.load();
  };
  const uint32_t told = failures(0);
  ASSERT_NE(told, 0);
  processes_[1].daemon()->failure.store(0);
  processes_[1].daemon()->failure_word = 0;
  Restart({0, 1}, Step(1), /*is_open=*/true, false, Generation(2), why);
  EXPECT_EQ(failures(1), 0);  // not before `open` shows the next
  job_->Open(Generation(2), Step(1));
  EXPECT_EQ(failures(0), told);
  EXPECT_EQ(failures(1), 2);
  EXPECT_EQ(processes_[1].daemon()->failure_word, proto::SequenceWord(1, 1));
}

TEST_F(TakenOverJobTest, WhatAWorkerGaveThatIsGoneCountsToo) {  // I20
  Push(1, 1, proto::SequenceWord(1, 1));
  Restart({0}, Step(1), /*is_open=*/true);
  job_->Open(Generation(1), Step(1));
  EXPECT_THAT(observer_.pushes, ElementsAre(Pushed{1, 1}));
  EXPECT_EQ(job_->state(), JobState::kWaiting);
  // Its replacement is told.
  FakeProcess process;
  FakeLink link(&process, 300);
  EXPECT_THAT(job_->Attach(LocalRank(1), &link, false), IsOk());
  Begin(1);
  ASSERT_THAT(replies_[1], IsOk());
  EXPECT_THAT(replies_[1]->pushed_buckets, ElementsAre(1));
  EXPECT_EQ(replies_[1]->cursor, "cursor 1");
  EXPECT_EQ(replies_[1]->optimizer_step, 7);
}

// A commit that is carried out: words only grow (I2).
TEST_F(TakenOverJobTest, WhatIsPublishedStaysPublished) {
  const uint64_t one = proto::SequenceWord(1, 1);
  processes_[0].published(0)->store(one);  // by the life before, in step 1
  Restart({0, 1}, Step(1), /*is_open=*/false);
  EXPECT_EQ(processes_[0].published(0)->load(), one);
  EXPECT_EQ(processes_[0].published(1)->load(), proto::SequenceWord(1, 0));
  job_->Open(Generation(1), Step(2));
  for (int b = 0; b < 3; ++b) {
    job_->Published(BucketId(b), Generation(1), Step(1));
  }
  EXPECT_EQ(processes_[1].published(2)->load(), one);
  // One that is open shows all of the version before it.
  Restart({0, 1}, Step(2), /*is_open=*/true);
  EXPECT_EQ(processes_[1].published(1)->load(), one);
  EXPECT_EQ(processes_[1].consumed(1)->load(), one);
}

// A worker is lost, its replacement comes, and then the daemon goes: the
// former's pushes and input are still there.
TEST_F(TakenOverJobTest, WhatAFormerWorkerGaveOutlivesItsReplacement) {  // I20
  const uint64_t word = proto::SequenceWord(1, 1);
  processes_[1].StoreInput(word, 0.25, "at 1");
  Push(1, 0, word);
  Push(1, 2, word);
  job_->OnLinkGone(LocalRank(1), absl::UnavailableError("died"));
  links_[1] = std::make_unique<FakeLink>(&processes_[1], 300);
  EXPECT_THAT(Attach(1), IsOk());
  Restart({0, 1}, Step(1), /*is_open=*/true);
  Begin(1);
  job_->Open(Generation(1), Step(1));
  EXPECT_THAT(observer_.pushes, ElementsAre(Pushed{1, 0}, Pushed{1, 2}));
  ASSERT_EQ(observer_.inputs.size(), 1);
  EXPECT_EQ(observer_.inputs[0].second, "at 1");
  ASSERT_THAT(replies_[1], IsOk());
  EXPECT_THAT(replies_[1]->pushed_buckets, ElementsAre(0, 2));
  EXPECT_EQ(replies_[1]->step_cursor, "at 1");
}

TEST_F(TakenOverJobTest, AClosedRankStaysClosed) {
  Restart({0, 1}, Step(1), /*is_open=*/true, /*closed=*/true);
  job_->Open(Generation(1), Step(1));
  EXPECT_EQ(job_->num_closed(), 1);
  EXPECT_EQ(job_->state(), JobState::kClosing);
  // For whoever still waits for the reply of the daemon before.
  EXPECT_EQ(processes_[1].daemon()->closed.load(), 1u);
  EXPECT_EQ(processes_[0].daemon()->closed.load(), 0u);
}

TEST_F(TakenOverJobTest, AWorkerThatLeavesIsNotKept) {
  EXPECT_FALSE(vault_.items.contains("job-initial"));
  EXPECT_TRUE(vault_.items.contains("worker-1"));
  EXPECT_EQ(vault_.items["worker-1"].note, "101");
  job_->OnLinkGone(LocalRank(1), absl::UnavailableError("died"));
  EXPECT_FALSE(vault_.items.contains("worker-1"));
  EXPECT_TRUE(vault_.items.contains("worker-0"));
}

TEST_F(LocalJobTest, AnAbortIsToldTogetherWithTheNewGeneration) {
  Start();
  Push(0, 0, Word(1, 1));
  job_->Aborted(Step(1), Generation(2), absl::InvalidArgumentError("lr"));
  proto::DaemonArea* const area = processes_[0].daemon();
  EXPECT_EQ(area->failure.load(), 0);
  EXPECT_EQ(area->open.load(), Word(1, 1));
  Push(0, 1, Word(1, 1));  // counts no more
  job_->Open(Generation(2), Step(1));
  EXPECT_EQ(area->failure.load(), 2);
  EXPECT_EQ(area->failure_fatal, 0);
  EXPECT_EQ(area->failure_word, Word(1, 1));
  EXPECT_STREQ(area->failure_text, "lr");
  EXPECT_EQ(area->open.load(), Word(2, 1));
  EXPECT_THAT(observer_.pushes, ElementsAre(Pushed{0, 0}));
  Push(0, 0, Word(2, 1));
  EXPECT_EQ(observer_.pushes.size(), 2);
}

TEST_F(LocalJobTest, FailureReachesAllAndEndsAllEvents) {
  Start();
  job_->Fail(absl::UnavailableError("daemon is draining"));
  for (int i = 0; i < kWorkers; ++i) {
    EXPECT_EQ(processes_[i].daemon()->failure_fatal, 1);
    EXPECT_STREQ(processes_[i].daemon()->failure_text, "daemon is draining");
    EXPECT_GE(processes_[i].wakes, 1);
  }
  Push(0, 0, Word(1, 1));
  job_->OnLinkGone(LocalRank(0), absl::UnavailableError("gone"));
  EXPECT_THAT(observer_.pushes, IsEmpty());
  EXPECT_THAT(observer_.lost, IsEmpty());
}

TEST_F(LocalJobTest, WaitingBeginsHearOfTheFailure) {  // I23
  ASSERT_THAT(Attach(0), IsOk());
  Begin(0);
  job_->Fail(absl::DeadlineExceededError("rank 1 has not attached"));
  EXPECT_THAT(replies_[0], StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(LocalJobTest, ManyStoresAreOneWake) {
  Start();
  executor_.RunUntilIdle();
  const int before = processes_[0].wakes;
  Commit(1);
  executor_.RunUntilIdle();
  EXPECT_EQ(processes_[0].wakes, before + 1);
}

TEST_F(LocalJobTest, ClosedByAllIsReportedOnce) {
  Start();
  job_->Close(LocalRank(0));
  EXPECT_EQ(job_->state(), JobState::kClosing);
  EXPECT_EQ(observer_.all_closed, 0);
  EXPECT_EQ(processes_[0].daemon()->closed.load(), 1u);
  EXPECT_EQ(processes_[1].daemon()->closed.load(), 0u);
  job_->Close(LocalRank(0));
  job_->OnLinkGone(LocalRank(0), absl::UnavailableError("gone"));
  EXPECT_THAT(observer_.lost, IsEmpty());  // it left on purpose
  FakeLink again(&processes_[2], 300);
  EXPECT_THAT(job_->Attach(LocalRank(0), &again, true),
              StatusIs(absl::StatusCode::kFailedPrecondition, "1 of 2"));
  job_->Close(LocalRank(1));
  EXPECT_EQ(observer_.all_closed, 1);
}

// I23: a step that a closed rank is missing from fails at once.
TEST_F(LocalJobTest, AStepWithoutAClosedRankIsToldToWhoeverTakesIt) {
  Start();
  proto::DaemonArea* const area = processes_[0].daemon();
  processes_[0].StoreInput(Word(1, 1), 0.1, "");
  Push(0, 0, Word(1, 1));
  EXPECT_EQ(area->failure.load(), 0);
  job_->Close(LocalRank(1));
  EXPECT_EQ(area->failure_fatal, 1);
  EXPECT_EQ(area->failure_code,
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(std::string(area->failure_text),
              testing::StartsWith("rank 1 has closed the job; step 1 can never "
                                  "be committed; "));
  executor_.RunUntilIdle();
  EXPECT_GE(processes_[0].wakes, 1);
  // The one that was told may still close, and the job ends as closed.
  job_->Close(LocalRank(0));
  EXPECT_EQ(observer_.all_closed, 1);
}

TEST_F(LocalJobTest, AStepAfterACloseIsToldWhenItBegins) {  // I23
  Start();
  job_->Close(LocalRank(1));
  proto::DaemonArea* const area = processes_[0].daemon();
  Push(0, 0, Word(1, 1));
  EXPECT_EQ(area->failure.load(), 0) << "a rank that only closes later";
  processes_[0].StoreInput(Word(1, 1), 0.1, "");
  job_->OnDoorbell(LocalRank(0));
  EXPECT_EQ(area->failure_fatal, 1);
}

TEST_F(LocalJobTest, ACloseOnAnotherNodeIsToldToWhoeverTakesTheStep) {  // I23
  Start();
  EXPECT_EQ(job_->Closing(), "");
  job_->OnClosedElsewhere({Rank(5), Step(2)});
  job_->OnClosedElsewhere({Rank(4), Step(3)});  // later, or an old one
  proto::DaemonArea* const area = processes_[0].daemon();
  processes_[0].StoreInput(Word(1, 1), 0.1, "");
  Push(0, 0, Word(1, 1));
  EXPECT_EQ(area->failure.load(), 0) << "step 1 has all of rank 5";
  Commit(1);
  EXPECT_EQ(area->failure.load(), 0) << "a rank that only closes";
  processes_[0].StoreInput(Word(1, 2), 0.1, "");
  Push(0, 0, Word(1, 2));
  EXPECT_EQ(area->failure_fatal, 1);
  EXPECT_THAT(std::string(area->failure_text),
              testing::StartsWith("rank 5 has closed the job; step 2 can never "
                                  "be committed; "));
  EXPECT_EQ(processes_[1].daemon()->failure.load(), 0);
  EXPECT_EQ(job_->Closing(),
            "rank 5 has closed the job, rank 0 (pid 100), rank 1 (pid 101) "
            "have not");
}

TEST_F(LocalJobTest, SaysWhoClosedFirstAndFromWhichStepOn) {
  Start();
  EXPECT_EQ(job_->early_close(), std::nullopt);
  processes_[1].StoreInput(Word(1, 1), 0.1, "");
  for (int b = 0; b < 3; ++b) processes_[1].pushed(b)->store(Word(1, 1));
  job_->Close(LocalRank(1));
  EXPECT_EQ(job_->early_close(), (EarlyClose{Rank(1), Step(2)}));
  Commit(1);
  EXPECT_EQ(job_->early_close(), (EarlyClose{Rank(1), Step(2)}));
  EXPECT_EQ(job_->Closing(),
            "rank 1 has closed the job, rank 0 (pid 100) has "
            "not");
  job_->Close(LocalRank(0));
  EXPECT_EQ(job_->Closing(), "");
  EXPECT_EQ(job_->early_close()->step, Step(2));
}

// A rank that has given all of its last step may go before it is committed.
TEST_F(LocalJobTest, AClosedRanksFullContributionStillCounts) {
  Start();
  processes_[1].StoreInput(Word(1, 1), 0.1, "");
  for (int b = 0; b < 3; ++b) processes_[1].pushed(b)->store(Word(1, 1));
  job_->Close(LocalRank(1));  // before its doorbell was heard
  EXPECT_EQ(observer_.pushes.size(), 3);
  processes_[0].StoreInput(Word(1, 1), 0.1, "");
  Push(0, 0, Word(1, 1));
  EXPECT_EQ(processes_[0].daemon()->failure.load(), 0);
  Commit(1);
  EXPECT_EQ(processes_[0].daemon()->failure.load(), 0);
  processes_[0].StoreInput(Word(1, 2), 0.1, "");
  Push(0, 0, Word(1, 2));
  EXPECT_EQ(processes_[0].daemon()->failure_fatal, 1);
}

// Weights that are not resident.
class GatheringJobTest : public testing::Test {
 protected:
  using Want = FakeObserver::Want;

  GatheringJobTest() : executor_(1), device_({}, &executor_) {
    AttachRequest request = SmallRequest("job", 0, 1);
    request.job.exchange = "exact secondary_partition=none";
    layout::Options options;
    options.bucket_bytes = request.job.bucket_bytes;
    job_ = *LocalJob::Create(
        &device_, &executor_, request.job,
        *layout::Layout::Create(request.job.tensors, {1, 1}, 1, options),
        NodeRank(0));
    job_->set_observer(&observer_);
    link_ = std::make_unique<FakeLink>(&process_, 100);
    EXPECT_THAT(job_->Attach(LocalRank(0), link_.get(), true), IsOk());
    job_->Begin(LocalRank(0), [](absl::StatusOr<BeginReply>) {});
  }
  void Ask(int unit, uint64_t request) {
    process_.wanted(unit)->store(request);
    job_->OnDoorbell(LocalRank(0));
  }

  base::SimExecutor executor_;
  device::HostDevice device_;
  FakeObserver observer_;
  FakeProcess process_;
  std::unique_ptr<LocalJob> job_;
  std::unique_ptr<FakeLink> link_;
};

TEST_F(GatheringJobTest, RequestsCountOnceAndOnlyForward) {
  Ask(1, 1);
  EXPECT_THAT(observer_.wants, IsEmpty()) << "nothing is published yet";
  job_->Open(Generation(1), Step(1));
  EXPECT_THAT(observer_.wants, ElementsAre(Want{0, 1, 1}));
  job_->OnDoorbell(LocalRank(0));
  Ask(1, 3);
  Ask(1, 2);  // back: ignored and counted
  EXPECT_THAT(observer_.wants, ElementsAre(Want{0, 1, 1}, Want{0, 1, 3}));
  EXPECT_EQ(job_->slot(LocalRank(0)).ignored(), 1u);
}

TEST_F(GatheringJobTest, WhatIsGivenBackMakesRoomFirst) {
  job_->Open(Generation(1), Step(1));
  Ask(2, 1);
  observer_.wants.clear();
  process_.wanted(2)->store(2);
  Ask(0, 1);
  EXPECT_THAT(observer_.wants, ElementsAre(Want{0, 2, 2}, Want{0, 0, 1}));
}

TEST_F(GatheringJobTest, WhatAWorkerHeldGoesBackWithIt) {
  job_->Open(Generation(1), Step(1));
  Ask(0, 1);
  Ask(2, 1);
  Ask(2, 2);
  observer_.wants.clear();
  job_->OnLinkGone(LocalRank(0), absl::UnavailableError("it died"));
  EXPECT_THAT(observer_.wants, ElementsAre(Want{0, 0, 2}));
  // Its replacement begins at nothing.
  FakeProcess next;
  FakeLink link(&next, 101);
  ASSERT_THAT(job_->Attach(LocalRank(0), &link, false), IsOk());
  EXPECT_EQ(next.wanted(0)->load(), 0u);
  EXPECT_EQ(next.held(0)->load(), 0u);
  job_->OnLinkGone(LocalRank(0), absl::OkStatus());
}

TEST_F(GatheringJobTest, AnswersAreStoredAndWakeTheWorker) {
  job_->Open(Generation(1), Step(1));
  Ask(1, 5);
  EXPECT_TRUE(executor_.RunUntilIdle());
  const int wakes = process_.wakes;
  job_->StoreHeld(LocalRank(0), 1, 5, proto::HeldState::kHeld,
                  WeightVersion(3));
  job_->Refuse(LocalRank(0), 2, 1, absl::ResourceExhaustedError("no room"));
  EXPECT_TRUE(executor_.RunUntilIdle());
  EXPECT_EQ(process_.wakes, wakes + 1) << "one wake for many";
  EXPECT_EQ(process_.held(1)->load(),
            proto::HeldWord(5, proto::HeldState::kHeld, 3));
  EXPECT_EQ(proto::StateOfHeld(process_.held(2)->load()),
            proto::HeldState::kRefused);
  EXPECT_STREQ(process_.daemon()->refusal_text, "no room");
}

// By the next daemon, of a worker that lives on: what it holds and wants is
// offered, whatever its request is by now; what the new daemon refuses, or the
// worker has given back, is not held, and only the former is asked for again.
TEST_F(GatheringJobTest, WhatControlBlocksSayIsRestored) {
  using proto::HeldState;
  using proto::HeldWord;
  job_->TakeOver(Generation(1), Step(4), /*is_open=*/true);
  process_.wanted(0)->store(7);
  process_.held(0)->store(HeldWord(5, HeldState::kHeld, 3));
  process_.wanted(1)->store(1);
  process_.held(1)->store(HeldWord(1, HeldState::kHeld, 2));
  process_.wanted(2)->store(2);
  process_.held(2)->store(HeldWord(1, HeldState::kHeld, 3));
  std::vector<std::pair<Want, int64_t>> offered;
  job_->RestoreHeld(
      [&](LocalRank rank, int unit, uint64_t request, WeightVersion version) {
        offered.push_back({{rank.value(), unit, request}, version.value()});
        return version == WeightVersion(3);
      });
  EXPECT_THAT(offered, ElementsAre(std::pair(Want{0, 0, 7}, 3),
                                   std::pair(Want{0, 1, 1}, 2)));
  EXPECT_EQ(proto::StateOfHeld(process_.held(0)->load()), HeldState::kHeld);
  for (const int unit : {1, 2}) {
    EXPECT_EQ(proto::StateOfHeld(process_.held(unit)->load()),
              HeldState::kNone);
  }
  observer_.wants.clear();
  job_->Open(Generation(1), Step(4));
  EXPECT_THAT(observer_.wants, ElementsAre(Want{0, 2, 2}, Want{0, 1, 1}));
}

// Its last worker heard of the refusal, and a worker that is gone, or has
// closed the job, wants nothing.
TEST_F(GatheringJobTest, RefusalsStandAndTheDeadWantNothing) {
  job_->TakeOver(Generation(1), Step(4), /*is_open=*/true);
  process_.wanted(0)->store(3);
  process_.held(0)->store(proto::HeldWord(3, proto::HeldState::kRefused, 0));
  const auto never = [](LocalRank, int, uint64_t, WeightVersion) {
    ADD_FAILURE() << "nothing is held";
    return false;
  };
  job_->RestoreHeld(never);
  job_->Open(Generation(1), Step(4));
  EXPECT_THAT(observer_.wants, IsEmpty());
  const auto ends = {+[](LocalJob* job) { job->Close(LocalRank(0)); },
                     +[](LocalJob* job) {
                       job->OnLinkGone(LocalRank(0),
                                       absl::UnavailableError("it died"));
                     }};
  for (const auto end : ends) {
    end(job_.get());
    observer_.wants.clear();
    process_.wanted(1)->store(1);
    process_.held(1)->store(proto::HeldWord(1, proto::HeldState::kHeld, 3));
    job_->TakeOver(Generation(1), Step(4), /*is_open=*/true);
    job_->RestoreHeld(never);
    job_->Open(Generation(1), Step(4));
    EXPECT_THAT(observer_.wants, IsEmpty());
  }
}

TEST_F(GatheringJobTest, InitialValuesAreKeptForTheirOwners) {
  const auto initial = job_->TakeInitial();
  ASSERT_NE(initial, nullptr);
  EXPECT_GE(initial->size_bytes(), job_->layout().weights_bytes());
  EXPECT_EQ(job_->TakeInitial(), nullptr);
  ASSERT_NE(job_->units(), nullptr);
  EXPECT_EQ(job_->units()->size(), 3);
}

}  // namespace
}  // namespace ballast::session
