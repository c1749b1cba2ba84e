#include "server/session/sessions.h"

#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/random.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/device/host/host_device.h"
#include "server/session/session_testing.h"

namespace ballast::session {
namespace {

using base::IsOk;
using base::StatusIs;
using testing::IsEmpty;
using testing::SizeIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class SessionsTest : public testing::Test {
 protected:
  explicit SessionsTest(Options options = {})
      : executor_(1),
        device_({}, &executor_),
        sessions_(options, &device_, &executor_, &host_) {}

  void Connect(const std::string& key, uint32_t uid = 1000) {
    sessions_.OnConnected(
        key, std::make_unique<FakeLink>(&processes_[key], ++last_pid_, uid));
  }
  absl::Status Attach(const std::string& key, AttachRequest request) {
    return sessions_.Attach(key, std::move(request)).status();
  }
  void Begin(const std::string& key,
             absl::Duration timeout = absl::InfiniteDuration()) {
    sessions_.Begin(key, timeout, [this, key](absl::StatusOr<BeginReply> r) {
      replies_[key] = r.status();
    });
  }
  // Workers `job`/0 … are connected, attached and ready; step 1 is open.
  void Run(const std::string& job, int world_size) {
    for (int i = 0; i < world_size; ++i) {
      const std::string key = job + "/" + std::to_string(i);
      Connect(key);
      ASSERT_THAT(Attach(key, SmallRequest(job, i, world_size)), IsOk());
      Begin(key);
    }
    ASSERT_EQ(host_.observers[job].all_ready, 1);
    sessions_.Find(job)->Open(Generation(1), Step(1));
  }

  base::SimExecutor executor_;
  device::HostDevice device_;
  FakeHost host_;
  std::map<std::string, FakeProcess> processes_;
  std::map<std::string, absl::Status> replies_;
  int last_pid_ = 100;
  Sessions sessions_;
};

TEST_F(SessionsTest, TwoWorkersRunAndCloseAJob) {
  Run("job", 2);
  EXPECT_THAT(replies_["job/0"], IsOk());
  EXPECT_EQ(sessions_.attaches(), 2);
  EXPECT_GT(sessions_.bytes(), 0);
  ASSERT_THAT(sessions_.Close("job/0"), IsOk());
  EXPECT_THAT(host_.ended, IsEmpty());
  ASSERT_THAT(sessions_.Close("job/1"), IsOk());
  ASSERT_THAT(host_.ended, SizeIs(1));
  EXPECT_THAT(host_.ended["job"], IsOk());
  executor_.RunFor(absl::Seconds(1));
  EXPECT_THAT(sessions_.jobs(), IsEmpty());
  EXPECT_EQ(sessions_.bytes(), 0);
  EXPECT_EQ(device_.shared_bytes_in_use(), 0);  // I28
  EXPECT_FALSE(processes_["job/0"].is_closed);
  // Its name is free again, and so is the connection.
  EXPECT_THAT(Attach("job/0", SmallRequest("job", 0, 1)), IsOk());
}

TEST_F(SessionsTest, ANameIsFreeAfterItsJobsEnd) {
  Run("job", 1);
  ASSERT_THAT(sessions_.Close("job/0"), IsOk());
  const auto attach = [&] {
    replies_["again"] = Attach("job/0", SmallRequest("job", 0, 1));
  };
  replies_["again"] = absl::UnknownError("not asked yet");
  sessions_.BeforeAttach("job/0", SmallRequest("job", 0, 1), attach);
  EXPECT_THAT(replies_["again"], StatusIs(absl::StatusCode::kUnknown));
  executor_.RunFor(absl::Seconds(1));
  EXPECT_THAT(replies_["again"], IsOk());
  // Nothing is ending: at once.
  bool is_called = false;
  sessions_.BeforeAttach("job/0", SmallRequest("job", 0, 1),
                         [&] { is_called = true; });
  EXPECT_TRUE(is_called);
}

TEST_F(SessionsTest, AStoredJobNeedsNoInitialValues) {
  host_.stored = StoredJob{"job/step-00000007", 1, 7};
  Connect("key");
  std::optional<absl::StatusOr<AttachReply>> reply;
  const auto attach = [&](AttachRequest request) {
    reply.reset();
    sessions_.AttachWhenKnown("key", std::move(request),
                              [&](auto result) { reply = std::move(result); });
  };
  AttachRequest request = SmallRequest("job", 0, 1);
  request.has_initial_values = false;
  request.resume = Resume::kMust;
  attach(request);
  ASSERT_THAT(*reply, IsOk());
  EXPECT_TRUE((*reply)->resumed);
  EXPECT_EQ((*reply)->initial_bytes, 0);
  LocalJob* const job = sessions_.Find("job");
  EXPECT_EQ(job->spec().stored, host_.stored);
  // What is stored is told at Begin.
  std::optional<BeginReply> begun;
  sessions_.Begin("key", absl::InfiniteDuration(), [&](auto r) { begun = *r; });
  job->Restore(6, {{.lr = 0.5}}, {"here"}, "here");
  job->Open(Generation(1), Step(8));
  ASSERT_TRUE(begun.has_value());
  EXPECT_EQ(begun->open_step, Step(8));
  EXPECT_EQ(begun->optimizer_step, 6);
  EXPECT_EQ(begun->cursor, "here");
  EXPECT_EQ(begun->groups[0].lr, 0.5);
  // It is held now: nothing replaces its state.
  ASSERT_THAT(sessions_.Detach("key"), IsOk());
  request.job.load = "other";
  attach(request);
  EXPECT_THAT(*reply, StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(SessionsTest, WhatIsStoredIsNotLookedAtIfItMayNotGoOn) {
  host_.stored = StoredJob{"job/step-00000007", 1, 7};
  Connect("key");
  AttachRequest request = SmallRequest("job", 0, 1);
  request.resume = Resume::kNever;
  std::optional<absl::StatusOr<AttachReply>> reply;
  sessions_.AttachWhenKnown("key", request,
                            [&](auto result) { reply = std::move(result); });
  ASSERT_THAT(*reply, IsOk());
  EXPECT_FALSE((*reply)->resumed);
  EXPECT_GT((*reply)->initial_bytes, 0);
  // Nothing is stored, and there must be something.
  host_.stored.reset();
  Connect("other");
  request = SmallRequest("other", 0, 1);
  request.resume = Resume::kMust;
  sessions_.AttachWhenKnown("other", request,
                            [&](auto result) { reply = std::move(result); });
  EXPECT_THAT(*reply, StatusIs(absl::StatusCode::kFailedPrecondition,
                               "held or stored"));
}

TEST_F(SessionsTest, AnUnknownKeyHasNoLease) {
  EXPECT_THAT(Attach("nobody", SmallRequest("job", 0, 1)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "lease"));
  EXPECT_FALSE(sessions_.Close("nobody").ok());
  Begin("nobody");
  EXPECT_FALSE(replies_["nobody"].ok());
}

TEST_F(SessionsTest, RanksMustAgree) {
  Connect("a");
  Connect("b");
  ASSERT_THAT(Attach("a", SmallRequest("job", 0, 2)), IsOk());
  AttachRequest other = SmallRequest("job", 1, 2);
  other.job.tensors[0].dtype = kernels::DType::kFloat16;
  EXPECT_THAT(Attach("b", other), StatusIs(kInvalid, "\"wte\""));
  other = SmallRequest("job", 1, 2);
  other.job.groups[0].lr = 7;
  EXPECT_THAT(Attach("b", other), StatusIs(kInvalid, "lr is 7"));
  EXPECT_THAT(Attach("b", SmallRequest("job", 1, 4)),
              StatusIs(kInvalid, "world_size"));
  EXPECT_THAT(Attach("b", SmallRequest("job", 0, 2)),
              StatusIs(absl::StatusCode::kAlreadyExists, "pid 101"));
  EXPECT_THAT(Attach("b", SmallRequest("job", 1, 2)), IsOk());  // no harm done
}

TEST_F(SessionsTest, SeveralNodesComeLater) {
  Connect("a");
  AttachRequest request = SmallRequest("job", 0, 2);
  request.placement.local_world_size = 1;
  EXPECT_THAT(Attach("a", request),
              StatusIs(kInvalid, "needs a daemon with listen.peer"));
}

TEST_F(SessionsTest, AnotherUserCannotJoin) {  // I26
  Connect("a", 1000);
  Connect("b", 1001);
  ASSERT_THAT(Attach("a", SmallRequest("job", 0, 2)), IsOk());
  EXPECT_THAT(Attach("b", SmallRequest("job", 1, 2)),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(processes_["b"].segments, IsEmpty());
}

TEST_F(SessionsTest, ResumeSaysWhatMayBeFound) {
  Connect("a");
  AttachRequest must = SmallRequest("job", 0, 1);
  must.resume = Resume::kMust;
  EXPECT_THAT(Attach("a", must),
              StatusIs(absl::StatusCode::kFailedPrecondition, "must"));
  ASSERT_THAT(Attach("a", SmallRequest("job", 0, 1)), IsOk());
  Begin("a");
  sessions_.Find("job")->Open(Generation(1), Step(1));
  sessions_.OnDisconnected("a", absl::UnavailableError("died"));
  Connect("b");
  AttachRequest never = SmallRequest("job", 0, 1);
  never.resume = Resume::kNever;
  EXPECT_THAT(Attach("b", never),
              StatusIs(absl::StatusCode::kFailedPrecondition, "never"));
  EXPECT_THAT(Attach("b", must), IsOk());
}

TEST_F(SessionsTest, BeginTimesOutAndSaysWhoIsMissing) {  // I23
  Connect("a");
  ASSERT_THAT(Attach("a", SmallRequest("job", 0, 2)), IsOk());
  Begin("a", absl::Seconds(5));
  executor_.RunFor(absl::Seconds(6));
  EXPECT_THAT(replies_["a"], StatusIs(absl::StatusCode::kDeadlineExceeded,
                                      "rank 1 has not attached"));
  Connect("b");  // and goes on when the other comes
  ASSERT_THAT(Attach("b", SmallRequest("job", 1, 2)), IsOk());
  Begin("b");
  Begin("a");
  EXPECT_EQ(host_.observers["job"].all_ready, 1);
}

TEST_F(SessionsTest, AJobThatDoesNotFillUpEnds) {  // I23
  Connect("a");
  ASSERT_THAT(Attach("a", SmallRequest("job", 0, 2)), IsOk());
  Begin("a");
  executor_.RunFor(absl::Minutes(11));
  EXPECT_THAT(replies_["a"], StatusIs(absl::StatusCode::kDeadlineExceeded,
                                      "rank 1 has not attached"));
  EXPECT_TRUE(processes_["a"].is_closed);
  EXPECT_EQ(device_.shared_bytes_in_use(), 0);
}

TEST_F(SessionsTest, ALostWorkerIsHeldForThenTheOthersHear) {  // I23
  Run("job", 2);
  sessions_.OnDisconnected("job/1", absl::UnavailableError("died"));
  executor_.RunFor(absl::Minutes(9));
  EXPECT_THAT(host_.ended, IsEmpty());
  executor_.RunFor(absl::Minutes(2));
  EXPECT_THAT(host_.ended["job"], StatusIs(absl::StatusCode::kUnavailable,
                                           "rank 1 (last pid 102) is gone"));
  EXPECT_EQ(processes_["job/0"].daemon()->failure_fatal, 1);
  EXPECT_EQ(device_.shared_bytes_in_use(), 0);
}

TEST_F(SessionsTest, AReplacementStopsTheClock) {
  Run("job", 2);
  sessions_.OnDisconnected("job/1", absl::UnavailableError("died"));
  executor_.RunFor(absl::Minutes(9));
  Connect("new");
  ASSERT_THAT(Attach("new", SmallRequest("job", 1, 2)), IsOk());
  executor_.RunFor(absl::Minutes(60));
  EXPECT_THAT(host_.ended, IsEmpty());
}

TEST_F(SessionsTest, AJobThatNeverBeganEndsWithItsLastWorker) {
  Connect("a");
  ASSERT_THAT(Attach("a", SmallRequest("job", 0, 2)), IsOk());
  sessions_.OnDisconnected("a", absl::UnavailableError("died"));
  executor_.Step();
  EXPECT_THAT(sessions_.jobs(), IsEmpty());
}

TEST_F(SessionsTest, OneThatLeavesWithoutClosingCannotHoldTheRest) {
  Run("job", 2);
  ASSERT_THAT(sessions_.Close("job/0"), IsOk());
  ASSERT_THAT(sessions_.Detach("job/1"), IsOk());
  EXPECT_THAT(host_.ended["job"], StatusIs(absl::StatusCode::kCancelled));
}

// I23: without this the others would wait for jobs.join_timeout.
// The daemon that heard it may die before it answers: it is asked again.
TEST_F(SessionsTest, ACloseThatIsRepeatedIsOk) {
  Run("job", 2);
  ASSERT_THAT(sessions_.Close("job/0"), IsOk());
  EXPECT_THAT(sessions_.Close("job/0"), IsOk());
  EXPECT_THAT(host_.ended, IsEmpty());
  ASSERT_THAT(sessions_.Close("job/1"), IsOk());
  executor_.RunFor(absl::Seconds(1));
  EXPECT_THAT(sessions_.jobs(), IsEmpty());
  EXPECT_THAT(sessions_.Close("job/0"), IsOk());
  EXPECT_THAT(sessions_.Close("nobody"),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(SessionsTest, ARankThatClosesBeforeTheStartEndsTheWait) {
  for (int i = 0; i < 3; ++i) {
    const std::string key = std::to_string(i);
    Connect(key);
    ASSERT_THAT(Attach(key, SmallRequest("job", i, 3)), IsOk());
  }
  Begin("0");
  ASSERT_THAT(sessions_.Close("1"), IsOk());
  for (const absl::Status& heard : {replies_["0"], host_.ended["job"]}) {
    EXPECT_THAT(heard, StatusIs(absl::StatusCode::kFailedPrecondition,
                                "rank 1 closed job \"job\" before it began"));
  }
  EXPECT_TRUE(processes_["2"].is_closed);
  EXPECT_FALSE(processes_["1"].is_closed) << "its answer is on the way";
  executor_.RunFor(absl::Seconds(1));
  EXPECT_EQ(device_.shared_bytes_in_use(), 0);
}

class LastStepTest : public SessionsTest {
 protected:
  // Rank 1 of 2 dies when step 1 is all done; rank 0 closes.
  void SetUp() override {
    Run("job", 2);
    for (const char* key : {"job/0", "job/1"}) Push(key, 1);
    ipc::StepReport report;
    report.generation = Generation(1);
    report.step = Step(1);
    job().Committed(report, "");
    job().Open(Generation(1), Step(2));
  }
  LocalJob& job() { return *sessions_.Find("job"); }
  void Push(const std::string& key, int step) {
    const uint64_t word = proto::SequenceWord(1, step);
    processes_[key].StoreInput(word, 0.1, "");
    for (int b = 0; b < 3; ++b) processes_[key].pushed(b)->store(word);
    sessions_.OnDoorbell(key);
  }
  void Lose(const std::string& key) {
    sessions_.OnDisconnected(key, absl::UnavailableError("process exited"));
  }
};

TEST_F(LastStepTest, AReplacementFindsTheEndAndCloses) {
  Lose("job/1");
  ASSERT_THAT(sessions_.Close("job/0"), IsOk());
  Lose("job/0");
  EXPECT_THAT(host_.ended, IsEmpty());
  Connect("new");
  ASSERT_THAT(Attach("new", SmallRequest("job", 1, 2)), IsOk());
  Begin("new");
  EXPECT_THAT(replies_["new"], IsOk());  // at once, with nothing left to do
  ASSERT_THAT(sessions_.Close("new"), IsOk());
  EXPECT_THAT(host_.ended["job"], IsOk());
}

TEST_F(LastStepTest, AReplacementThatTakesOneMoreStepIsTold) {  // I23
  ASSERT_THAT(sessions_.Close("job/0"), IsOk());
  Lose("job/1");
  Connect("new");
  ASSERT_THAT(Attach("new", SmallRequest("job", 1, 2)), IsOk());
  Begin("new");
  Push("new", 2);
  EXPECT_THAT(std::string(processes_["new"].daemon()->failure_text),
              testing::HasSubstr("rank 0 has closed the job; step 2"));
  Lose("new");
  EXPECT_THAT(host_.ended["job"], StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(LastStepTest, WithoutAReplacementTheHoldEndsIt) {  // I28
  Lose("job/1");
  ASSERT_THAT(sessions_.Close("job/0"), IsOk());
  executor_.RunFor(absl::Minutes(11));
  EXPECT_THAT(host_.ended["job"], StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(device_.shared_bytes_in_use(), 0);
}

// What it leaves where snapshots are kept.
TEST_F(LastStepTest, ItsStateIsStoredFirst) {
  host_.saves_held = true;
  Lose("job/1");
  executor_.RunFor(absl::Minutes(11));
  ASSERT_TRUE(host_.saving_held.contains("job"));
  EXPECT_THAT(host_.ended, IsEmpty());
  Connect("late");  // it comes to the next job
  bool has_come = false;
  sessions_.BeforeAttach("late", SmallRequest("job", 1, 2),
                         [&] { has_come = true; });
  executor_.RunFor(absl::Seconds(1));
  EXPECT_FALSE(has_come);
  std::move(host_.saving_held["job"])("job/step-00000001");
  EXPECT_THAT(host_.ended["job"],
              StatusIs(absl::StatusCode::kUnavailable,
                       "its state is in snapshot job/step-00000001"));
  executor_.RunFor(absl::Seconds(1));
  EXPECT_TRUE(has_come);
}

// It is the only copy: what cannot be stored stays, until it can.
TEST_F(LastStepTest, WhatCannotBeStoredStaysHeld) {
  host_.saves_held = true;
  Lose("job/1");
  executor_.RunFor(absl::Minutes(11));
  EXPECT_EQ(sessions_.NotStored("job"), "");
  Connect("late");
  bool has_come = false;
  sessions_.BeforeAttach("late", SmallRequest("job", 1, 2),
                         [&] { has_come = true; });
  const uint64_t held = device_.shared_bytes_in_use();
  for (int i = 0; i < 3; ++i) {
    auto done = std::move(host_.saving_held["job"]);
    host_.saving_held.clear();
    std::move(done)(absl::ResourceExhaustedError("the disk is full"));
    EXPECT_TRUE(has_come);
    EXPECT_EQ(sessions_.NotStored("job"), "the disk is full");
    executor_.RunFor(absl::Seconds(50));
    EXPECT_THAT(host_.saving_held, IsEmpty());
    executor_.RunFor(absl::Seconds(20));
    EXPECT_THAT(host_.ended, IsEmpty());
    ASSERT_TRUE(host_.saving_held.contains("job"));  // again
  }
  EXPECT_EQ(device_.shared_bytes_in_use(), held);
  std::move(host_.saving_held["job"])("job/step-00000001");
  EXPECT_THAT(host_.ended["job"],
              StatusIs(absl::StatusCode::kUnavailable,
                       "its state is in snapshot job/step-00000001"));
  executor_.RunFor(absl::Seconds(1));
  EXPECT_EQ(device_.shared_bytes_in_use(), 0);
}

TEST_F(LastStepTest, WhatCouldNotBeStoredGoesOn) {
  host_.saves_held = true;
  Lose("job/1");
  executor_.RunFor(absl::Minutes(11));
  std::move(host_.saving_held["job"])(absl::ResourceExhaustedError("full"));
  host_.saving_held.clear();
  Connect("new");
  ASSERT_THAT(Attach("new", SmallRequest("job", 1, 2)), IsOk());
  EXPECT_EQ(sessions_.NotStored("job"), "");
  executor_.RunFor(absl::Hours(1));
  EXPECT_THAT(host_.saving_held, IsEmpty());
  EXPECT_THAT(host_.ended, IsEmpty());
}

TEST_F(LastStepTest, OtherNodesThatNeverAnswerAreAskedAgain) {
  host_.saves_held = true;
  Lose("job/1");
  executor_.RunFor(absl::Minutes(14));
  EXPECT_EQ(sessions_.NotStored("job"), "");
  auto late = std::move(host_.saving_held["job"]);
  host_.saving_held.clear();
  executor_.RunFor(absl::Seconds(90));
  EXPECT_EQ(sessions_.NotStored("job"), "that took more than 5m");
  executor_.RunFor(absl::Minutes(1));
  ASSERT_TRUE(host_.saving_held.contains("job"));
  std::move(late)("job/step-00000001");  // it says nothing of now
  EXPECT_THAT(host_.ended, IsEmpty());
  std::move(host_.saving_held["job"])("job/step-00000001");
  EXPECT_FALSE(host_.ended["job"].ok());
}

TEST_F(LastStepTest, AnotherLifeOfTheJobIsTheEnd) {
  host_.saves_held = true;
  Lose("job/1");
  executor_.RunFor(absl::Minutes(11));
  std::move(host_.saving_held["job"])(absl::AlreadyExistsError("another life"));
  EXPECT_THAT(host_.ended["job"],
              StatusIs(absl::StatusCode::kUnavailable,
                       "its state is not stored: another life"));
}

TEST_F(LastStepTest, ANewRunDoesNotWaitForTheHold) {
  Lose("job/1");
  ASSERT_THAT(sessions_.Close("job/0"), IsOk());
  Connect("stranger", 1001);
  absl::Status attached = absl::UnknownError("not yet");
  const auto come = [&](const std::string& key) {
    attached = absl::UnknownError("not yet");
    sessions_.BeforeAttach(key, SmallRequest("job", 0, 2), [&, key] {
      attached = Attach(key, SmallRequest("job", 0, 2));
    });
  };
  come("stranger");
  EXPECT_THAT(attached, StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(host_.ended, IsEmpty());
  Connect("again");
  come("again");
  EXPECT_THAT(host_.ended["job"],
              StatusIs(absl::StatusCode::kAborted, "a new run"));
  executor_.RunFor(absl::Seconds(1));
  EXPECT_THAT(attached, IsOk());
  EXPECT_FALSE(sessions_.Find("job")->has_begun());
}

TEST_F(SessionsTest, AHostThatCannotRefusesTheAttach) {
  Connect("a");
  host_.refusal = absl::ResourceExhaustedError("no memory");
  const absl::Status refused = Attach("a", SmallRequest("job", 0, 1));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_TRUE(IsForMemory(refused));
  EXPECT_THAT(sessions_.jobs(), IsEmpty());
  EXPECT_EQ(device_.shared_bytes_in_use(), 0);
}

TEST_F(SessionsTest, DrainRefusesNewWorkersAndTellsTheOthers) {
  Run("job", 1);
  const auto draining = absl::UnavailableError("daemon is draining");
  sessions_.StopAccepting(draining);
  Connect("late");
  const absl::Status refused = Attach("late", SmallRequest("other", 0, 1));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnavailable, "draining"));
  EXPECT_TRUE(IsForDraining(refused));
  sessions_.FailAll(draining);
  EXPECT_STREQ(processes_["job/0"].daemon()->failure_text,
               "daemon is draining");
  EXPECT_TRUE(processes_["job/0"].is_closed);
}

Options FewIdle() {
  Options options;
  options.idle = {
      .max_total = 3, .max_per_uid = 2, .timeout = absl::Seconds(30)};
  return options;
}

class IdleSessionsTest : public SessionsTest {
 protected:
  IdleSessionsTest() : SessionsTest(FewIdle()) {}
};

TEST_F(IdleSessionsTest, WhoNeverAttachesMakesRoomForWhoDoes) {  // I26
  for (int i = 0; i < 20; ++i) {
    Connect("idle/" + std::to_string(i));
    EXPECT_LE(sessions_.num_connections(), 3);
  }
  EXPECT_TRUE(processes_["idle/0"].is_closed);
  EXPECT_THAT(Attach("idle/0", SmallRequest("job", 0, 1)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "lease"));
  Run("job", 2);  // of the same uid
  EXPECT_FALSE(processes_["job/0"].is_closed);
  for (int i = 20; i < 40; ++i) Connect("idle/" + std::to_string(i));
  executor_.RunFor(absl::Minutes(5));
  EXPECT_EQ(sessions_.num_idle_connections(), 0);
  EXPECT_EQ(sessions_.num_connections(), 2);
  EXPECT_FALSE(processes_["job/0"].is_closed);
  EXPECT_THAT(host_.ended, IsEmpty());
}

TEST_F(IdleSessionsTest, AClosedWorkersConnectionIsIdleAgain) {  // I28
  Run("a", 1);
  ASSERT_THAT(sessions_.Close("a/0"), IsOk());
  Run("b", 2);
  ASSERT_THAT(sessions_.Detach("b/0"), IsOk());
  EXPECT_EQ(sessions_.num_idle_connections(), 2);
  executor_.RunFor(absl::Minutes(1));
  EXPECT_TRUE(processes_["a/0"].is_closed);
  EXPECT_TRUE(processes_["b/0"].is_closed);
  EXPECT_EQ(sessions_.num_connections(), 1);
  EXPECT_FALSE(processes_["b/1"].is_closed);
}

TEST_F(IdleSessionsTest, AJobsEndMayExceedTheBounds) {
  Run("job", 4);
  for (int i = 0; i < 4; ++i) {
    ASSERT_THAT(sessions_.Close("job/" + std::to_string(i)), IsOk());
  }
  EXPECT_EQ(sessions_.num_idle_connections(), 2);
  EXPECT_EQ(sessions_.num_connections(), 2);
}

Options Bounded() {
  Options options;
  options.limits.max_jobs = 2;
  options.limits.max_job_bytes = 1 << 20;
  options.limits.max_total_bytes = 3 << 19;
  return options;
}

class BoundedSessionsTest : public SessionsTest {
 protected:
  BoundedSessionsTest() : SessionsTest(Bounded()) {}
};

TEST_F(BoundedSessionsTest, RefusesBeforeItAllocates) {  // I26
  Connect("a");
  AttachRequest big = SmallRequest("big", 0, 1);
  big.job.tensors[0].shape = {int64_t{1} << 38};
  const auto refused = Attach("a", big);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                "limits.max_job_bytes"));
  EXPECT_TRUE(IsForMemory(refused));
  EXPECT_EQ(device_.shared_bytes_in_use(), 0);
}

TEST_F(BoundedSessionsTest, CountsWhatIsOnItsWayBetweenNodes) {
  Connect("a");
  host_.windows = uint64_t{1} << 40;
  EXPECT_THAT(
      Attach("a", SmallRequest("a", 0, 1)),
      StatusIs(absl::StatusCode::kResourceExhausted, "limits.max_job_bytes"));
  host_.windows = 1000;
  const uint64_t before = sessions_.bytes();
  ASSERT_THAT(Attach("a", SmallRequest("a", 0, 1)), IsOk());
  const uint64_t with = sessions_.bytes() - before;
  host_.windows = 0;
  Connect("b");
  ASSERT_THAT(Attach("b", SmallRequest("b", 0, 1)), IsOk());
  EXPECT_EQ(sessions_.bytes() - before, 2 * with - 1000);
}

TEST_F(BoundedSessionsTest, CountsJobs) {
  Run("a", 1);
  Run("b", 1);
  Connect("c");
  const auto refused = Attach("c", SmallRequest("c", 0, 1));
  EXPECT_THAT(refused,
              StatusIs(absl::StatusCode::kResourceExhausted, "max_jobs"));
  EXPECT_FALSE(IsForMemory(refused));
}

TEST_F(BoundedSessionsTest, TheSumIsBoundedToo) {
  Connect("a");
  Connect("b");
  AttachRequest request = SmallRequest("a", 0, 1);
  request.job.tensors[0].shape = {30000};
  ASSERT_THAT(Attach("a", request), IsOk());
  request.job.name = "b";
  EXPECT_THAT(
      Attach("b", request),
      StatusIs(absl::StatusCode::kResourceExhausted, "limits.max_total_bytes"));
}

class ReshapedSessionsTest : public SessionsTest {
 protected:
  explicit ReshapedSessionsTest(Options options = Replicas())
      : SessionsTest(std::move(options)) {}
  static Options Replicas() {
    Options options;
    options.keeps_replicas = true;
    return options;
  }
  // All workers of a job of two are gone; one that is alone comes.
  void Reshape() {
    Run("job", 2);
    for (const char* key : {"job/0", "job/1"}) {
      sessions_.OnDisconnected(key, absl::UnavailableError("exited"));
    }
    Connect("new");
    replies_["new"] = absl::UnknownError("not answered yet");
    sessions_.AttachWhenKnown(
        "new", SmallRequest("job", 0, 1),
        [this](auto reply) { replies_["new"] = reply.status(); });
    ASSERT_TRUE(host_.saving.contains("job"));
    EXPECT_THAT(replies_["new"], StatusIs(absl::StatusCode::kUnknown));
  }
};

TEST_F(ReshapedSessionsTest, TheLastStateIsKeptAndTheJobEnds) {
  Reshape();
  std::move(host_.saving["job"])(absl::OkStatus());
  EXPECT_THAT(host_.ended["job"],
              StatusIs(absl::StatusCode::kAborted, "in another shape"));
  executor_.RunFor(absl::Seconds(1));
  EXPECT_THAT(replies_["new"], IsOk());
  EXPECT_EQ(sessions_.Find("job")->layout().topology().world_size(), 1);
}

// It ends all the same: what it held before is what there is.
TEST_F(ReshapedSessionsTest, AStateThatCannotBeKeptIsNamed) {
  Reshape();
  std::move(host_.saving["job"])(absl::DeadlineExceededError("node 1"));
  EXPECT_THAT(host_.ended["job"],
              StatusIs(absl::StatusCode::kAborted, "is not kept: node 1"));
}

// Workers are attached elsewhere: asked again for a while, then refused.
TEST_F(ReshapedSessionsTest, AJobThatGoesOnElsewhereIsLeftAlone) {
  Reshape();
  int asked = 0;
  for (int i = 0; i < 100; ++i) {
    if (const auto it = host_.saving.find("job"); it != host_.saving.end()) {
      auto done = std::move(it->second);
      host_.saving.erase(it);
      ++asked;
      std::move(done)(absl::FailedPreconditionError("rank 1 is attached"));
    }
    executor_.RunFor(absl::Milliseconds(100));
  }
  EXPECT_GT(asked, 5);
  EXPECT_LT(asked, 15);
  EXPECT_THAT(host_.ended, IsEmpty());
  EXPECT_THAT(replies_["new"], StatusIs(kInvalid, "world_size"));
  // It is held as it was: for a while only.
  executor_.RunFor(absl::Minutes(11));
  EXPECT_THAT(host_.ended, SizeIs(1));
}

TEST_F(ReshapedSessionsTest, RunningWorkersAreNeverDisturbed) {
  Run("job", 2);
  Connect("new");
  sessions_.AttachWhenKnown(
      "new", SmallRequest("job", 0, 1),
      [this](auto reply) { replies_["new"] = reply.status(); });
  EXPECT_THAT(replies_["new"], StatusIs(kInvalid, "world_size"));
  EXPECT_THAT(host_.saving, IsEmpty());
}

// Without replicas: where one node keeps snapshots.
class StoredSessionsTest : public ReshapedSessionsTest {
 protected:
  StoredSessionsTest() : ReshapedSessionsTest(Snapshots()) {}
  static Options Snapshots() {
    Options options;
    options.keeps_snapshots = true;
    options.allow_many_nodes = true;
    return options;
  }
};

TEST_F(StoredSessionsTest, AHeldJobIsStoredForWorkersInAnotherShape) {
  Reshape();
  host_.stored = StoredJob{"job/step-00000003", 1, 3};
  std::move(host_.saving["job"])(absl::OkStatus());
  EXPECT_THAT(host_.ended["job"],
              StatusIs(absl::StatusCode::kAborted, "in another shape"));
  executor_.RunFor(absl::Seconds(1));
  EXPECT_THAT(replies_["new"], IsOk());
  EXPECT_EQ(sessions_.Find("job")->spec().stored->step, 3);
}

TEST_F(StoredSessionsTest, WorkersOfSeveralNodesAreToldWhatToDo) {
  Run("job", 2);
  for (const char* key : {"job/0", "job/1"}) {
    sessions_.OnDisconnected(key, absl::UnavailableError("exited"));
  }
  Connect("new");
  AttachRequest request = SmallRequest("job", 0, 2);
  request.placement.world_size = 4;
  sessions_.AttachWhenKnown(
      "new", request, [this](auto reply) { replies_["new"] = reply.status(); });
  EXPECT_THAT(host_.saving, IsEmpty());
  EXPECT_THAT(
      replies_["new"],
      StatusIs(kInvalid,
               "world_size / local_world_size / node_rank are 4 / 2 / 0 here, "
               "2 / 2 / 0 in job \"job\", which is held here for workers in "
               "the place of those that left: start them as they were"));
}

// Whether there is something to go on from is known later.
TEST_F(ReshapedSessionsTest, RankZeroMayComeWithoutValues) {
  Connect("key");
  AttachRequest request = SmallRequest("job", 0, 1);
  request.has_initial_values = false;
  request.resume = Resume::kMust;
  ASSERT_THAT(Attach("key", request), IsOk());
  const LocalJob& job = *sessions_.Find("job");
  EXPECT_TRUE(job.spec().asks_nodes);
  EXPECT_TRUE(job.spec().must_resume);
  EXPECT_FALSE(job.has_initial_values());
}

// What jobs that ended left counts as theirs did.
TEST_F(BoundedSessionsTest, CountsWhatIsHeld) {
  host_.held = Bounded().limits.max_total_bytes;
  Connect("key");
  EXPECT_THAT(
      Attach("key", SmallRequest("job", 0, 1)),
      StatusIs(absl::StatusCode::kResourceExhausted, "limits.max_total_bytes"));
}

// Whatever a worker scribbles over what it may write, the daemon stands, and a
// second job does not notice (I26).
TEST_F(SessionsTest, ScribblingHarmsNobodyElse) {
  Run("evil", 1);
  Run("good", 1);
  base::SeededRandom random(7);
  FakeObserver& evil = host_.observers["evil"];
  FakeObserver& good = host_.observers["good"];
  FakeProcess& process = processes_["evil/0"];
  base::Segment& block = process.segments.at(proto::SegmentKind::kControlBlock);
  int64_t step = 1;
  for (int round = 0; round < 2000; ++round) {
    const size_t size = block.size_bytes();
    for (int i = 0; i < 64; ++i) {
      block.bytes()[random.Below(size)] = static_cast<std::byte>(random.Next());
    }
    // Offsets of the true layout: words that are almost right.
    const auto layout = proto::ControlBlockLayout::For(3, 1);
    auto* pushed = reinterpret_cast<proto::Word*>(block.bytes().data() +
                                                  layout.pushed_offset);
    pushed[random.Below(3)].store(
        proto::SequenceWord(random.Below(3), step + random.Below(3) - 1));
    auto* area = reinterpret_cast<proto::WorkerArea*>(
        block.bytes().data() + layout.worker_area_offset);
    area->step_input.store(proto::SequenceWord(1, step));
    area->cursor_bytes = static_cast<uint32_t>(random.Next());
    sessions_.OnDoorbell("evil/0");
    for (const auto& push : evil.pushes) ASSERT_LT(push.bucket, 3);
    ASSERT_LE(evil.pushes.size(), 3);
    if (round % 10 == 9) {
      LocalJob* const job = sessions_.Find("evil");
      ipc::StepReport report;
      report.generation = Generation(1);
      report.step = Step(step);
      job->Committed(report, "");
      evil.pushes.clear();
      evil.refusals.clear();
      job->Open(Generation(1), Step(++step));
      job->Consumed(BucketId(1), Generation(1), Step(step - 1));
    }
  }
  EXPECT_THAT(good.pushes, IsEmpty());
  EXPECT_THAT(good.refusals, IsEmpty());
  EXPECT_EQ(processes_["good/0"].daemon()->open.load(),
            proto::SequenceWord(1, 1));
  processes_["good/0"].pushed(0)->store(proto::SequenceWord(1, 1));
  sessions_.OnDoorbell("good/0");
  EXPECT_THAT(good.pushes, SizeIs(1));
  EXPECT_EQ(host_.ended.count("good"), 0);
}

}  // namespace
}  // namespace ballast::session
