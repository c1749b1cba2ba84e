#include "server/session/process_watch.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/device/host/host_device.h"
#include "server/session/session_testing.h"

namespace ballast::session {
namespace {

using base::IsOk;
using ipc::ProcessState;

constexpr char kStopped101[] =
    "rank 1 (pid 101) is stopped (SIGSTOP or a debugger): kill -CONT 101";

class ProcessWatchTest : public testing::Test {
 protected:
  ProcessWatchTest() : executor_(1), device_({}, &executor_) {}

  void Make(int workers) {
    AttachRequest request = SmallRequest("job", 0, workers);
    layout::Options options;
    options.bucket_bytes = request.job.bucket_bytes;
    auto layout =
        layout::Layout::Create(request.job.tensors, {1, workers}, 1, options);
    ASSERT_THAT(layout, IsOk());
    auto job = LocalJob::Create(&device_, &executor_, request.job,
                                *std::move(layout), NodeRank(0));
    ASSERT_THAT(job, IsOk());
    job_ = *std::move(job);
    job_->set_observer(&observer_);
  }
  void Attach(int rank, int64_t pid, bool begins = true) {
    links_[rank] = std::make_unique<FakeLink>(&processes_[rank], pid);
    ASSERT_THAT(
        job_->Attach(LocalRank(rank), links_[rank].get(), true).status(),
        IsOk());
    if (begins) {
      job_->Begin(LocalRank(rank), [](absl::StatusOr<BeginReply>) {});
    }
  }
  void Start(int workers) {
    Make(workers);
    for (int rank = 0; rank < workers; ++rank) Attach(rank, 100 + rank);
    job_->Open(Generation(1), Step(1));
  }
  std::string Describe() { return watch_.Describe(*job_, executor_.Now()); }

  static constexpr int kMost = 12;
  base::SimExecutor executor_;
  device::HostDevice device_;
  FakeProcess processes_[kMost];
  std::unique_ptr<FakeLink> links_[kMost];
  FakeObserver observer_;
  std::unique_ptr<LocalJob> job_;
  ProcessWatch watch_;
};

TEST_F(ProcessWatchTest, TellsAStoppedWorkerFromASlowOne) {
  Start(2);
  EXPECT_EQ(Describe(), "");
  processes_[1].state = ProcessState::kStopped;
  executor_.RunFor(ProcessWatch::kEvery);
  EXPECT_EQ(Describe(), kStopped101);
  EXPECT_EQ(watch_.StateOf(*job_, LocalRank(0), executor_.Now()),
            ProcessState::kRunning);
  processes_[1].state = ProcessState::kRunning;
  executor_.RunFor(ProcessWatch::kEvery);
  EXPECT_EQ(Describe(), "");
}

TEST_F(ProcessWatchTest, LooksOnceInASecond) {
  Start(2);
  for (int i = 0; i < 100; ++i) {
    Describe();
    executor_.RunFor(absl::Milliseconds(100));
  }
  EXPECT_EQ(processes_[0].looks, 10);
  EXPECT_EQ(processes_[1].looks, 10);
}

TEST_F(ProcessWatchTest, SaysThatItCannotBeTold) {
  Start(3);
  processes_[0].state = processes_[2].state = ProcessState::kUnknown;
  EXPECT_EQ(Describe(),
            "whether rank 0, rank 2 runs or is stopped cannot be told: its pid "
            "is not visible to the daemon");
  processes_[1].state = ProcessState::kStopped;
  executor_.RunFor(ProcessWatch::kEvery);
  EXPECT_EQ(Describe().find(kStopped101), 0u) << Describe();
}

// Nobody waits for one that has given all of the step.
TEST_F(ProcessWatchTest, NamesOnlyThoseThatOweSomething) {
  Start(2);
  for (FakeProcess& process : processes_) {
    process.state = ProcessState::kStopped;
  }
  const uint64_t word = proto::SequenceWord(1, 1);
  processes_[0].StoreInput(word, 0.1, "");
  for (int b = 0; b < static_cast<int>(job_->layout().buckets().size()); ++b) {
    processes_[0].pushed(b)->store(word);
  }
  job_->OnDoorbell(LocalRank(0));
  EXPECT_EQ(Describe(), kStopped101);
  EXPECT_EQ(processes_[0].looks, 0);
}

TEST_F(ProcessWatchTest, NamesOneThatHasNotBegun) {
  Make(2);
  Attach(0, 100);
  Attach(1, 101, /*begins=*/false);
  for (FakeProcess& process : processes_) {
    process.state = ProcessState::kStopped;
  }
  EXPECT_EQ(Describe(), kStopped101);
}

TEST_F(ProcessWatchTest, LooksAnewAtAReplacement) {
  Start(2);
  processes_[1].state = ProcessState::kStopped;
  EXPECT_EQ(Describe(), kStopped101);
  job_->OnLinkGone(LocalRank(1), absl::UnavailableError("it died"));
  EXPECT_EQ(Describe(), "");  // dead, which others say
  EXPECT_EQ(watch_.StateOf(*job_, LocalRank(1), executor_.Now()), std::nullopt);
  processes_[1].state = ProcessState::kRunning;
  Attach(1, 201);
  EXPECT_EQ(watch_.StateOf(*job_, LocalRank(1), executor_.Now()),
            ProcessState::kRunning);
}

TEST_F(ProcessWatchTest, NamesSoMany) {
  Start(kMost);
  for (FakeProcess& process : processes_) {
    process.state = ProcessState::kStopped;
  }
  EXPECT_NE(Describe().find("; 4 more"), std::string::npos) << Describe();
}

}  // namespace
}  // namespace ballast::session
