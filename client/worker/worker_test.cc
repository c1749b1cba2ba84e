#include "client/worker/worker.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "client/worker/fake_daemon.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/segment.h"
#include "server/base/status_matchers.h"
#include "server/base/unique_fd.h"

namespace ballast::worker {
namespace {

using base::IsOk;
using base::StatusIs;
using proto::SequenceWord;

constexpr auto kShort = absl::Milliseconds(120);

// Two trainable tensors and a frozen one, of 16 floats.
Options MakeOptions(const FakeDaemon& daemon) {
  Options options;
  options.address = daemon.address();
  options.job.set_name("job");
  for (const char* name : {"a", "b", "frozen"}) {
    auto* tensor = options.job.add_tensors();
    tensor->set_name(name);
    tensor->add_shape(16);
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    tensor->set_frozen(std::string(name) == "frozen");
  }
  options.job.mutable_optimizer()->add_groups()->set_lr(0.5);
  options.topology.set_world_size(1);
  options.topology.set_local_world_size(1);
  return options;
}

class WorkerTest : public ::testing::Test {
 protected:
  void Start(FakeDaemon::Script script = FakeDaemon::DefaultScript()) {
    daemon_ = std::make_unique<FakeDaemon>(std::move(script));
    auto worker = Worker::Open(MakeOptions(*daemon_));
    ASSERT_THAT(worker, IsOk());
    worker_ = *std::move(worker);
  }

  // Runs `script` as the daemon while the worker is in Step.
  absl::StatusOr<StepResult> StepWith(std::function<void()> script,
                                      StepRequest request = {}) {
    std::thread daemon(std::move(script));
    auto result = worker_->Step(request);
    daemon.join();
    return result;
  }

  void Serve(uint64_t word) {
    daemon_->AwaitPushed(word);
    daemon_->Commit(word);
    daemon_->Publish(word);
  }

  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<Worker> worker_;
};

TEST_F(WorkerTest, StepsOneAfterTheOther) {
  Start();
  for (int step = 1; step <= 3; ++step) {
    EXPECT_EQ(worker_->open_step(), step);
    worker_->groups()[0].lr = step;
    const std::string cursor = "at " + std::to_string(step);
    const uint64_t word = SequenceWord(1, step);
    const auto result = StepWith([&] { Serve(word); }, {.cursor = cursor});
    ASSERT_THAT(result, IsOk());
    EXPECT_EQ(result->step, step);
    EXPECT_EQ(result->grad_norm, 2);
    EXPECT_EQ(daemon_->cursor(), cursor);
    EXPECT_EQ(daemon_->lr(), step);
    EXPECT_EQ(worker_->cursor(), cursor);
    EXPECT_EQ(worker_->rank0_cursor(), "rank 0's of " + std::to_string(step));
    EXPECT_EQ(worker_->weight_version(), step);
  }
}

TEST_F(WorkerTest, HandsOverInitialValues) {
  daemon_ = std::make_unique<FakeDaemon>(FakeDaemon::DefaultScript());
  Options options = MakeOptions(*daemon_);
  std::vector<float> values(48, 1.5f);
  const auto bytes = std::as_bytes(std::span(values));
  for (int i = 0; i < 3; ++i) {
    options.initial_values.push_back(bytes.subspan(64 * i, 64));
  }
  ASSERT_THAT(Worker::Open(options), IsOk());
  for (int tensor = 0; tensor < 3; ++tensor) {
    float value;
    std::memcpy(&value, &daemon_->initial()[64 * tensor + 60], 4);
    EXPECT_EQ(value, 1.5f);
  }
}

TEST_F(WorkerTest, RefusesTensorsThatShareMemory) {  // I16
  daemon_ = std::make_unique<FakeDaemon>(FakeDaemon::DefaultScript());
  Options options = MakeOptions(*daemon_);
  std::vector<float> values(48);
  const auto bytes = std::as_bytes(std::span(values));
  options.initial_values = {bytes.first(64), bytes.subspan(60, 64),
                            bytes.last(64)};
  EXPECT_THAT(Worker::Open(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "\"a\" and \"b\" overlap in memory by 4 bytes"));
  options.initial_values[1] = options.initial_values[0];
  EXPECT_THAT(Worker::Open(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "\"a\" and \"b\" share storage"));
}

TEST_F(WorkerTest, RefusesInitialValuesOfWrongSize) {
  daemon_ = std::make_unique<FakeDaemon>(FakeDaemon::DefaultScript());
  Options options = MakeOptions(*daemon_);
  std::vector<float> values(15);
  const auto bytes = std::as_bytes(std::span(values));
  options.initial_values = {bytes, bytes, bytes};
  EXPECT_THAT(Worker::Open(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "tensor \"a\" has 60 bytes"));
}

TEST_F(WorkerTest, MapsWeightsAndGradientsWhereTheDaemonHasThem) {
  Start();
  worker_->grads(1)[3] = std::byte{7};
  EXPECT_EQ(daemon_->gradients()[64 + 3], std::byte{7});
  daemon_->weights()[128 + 5] = std::byte{9};
  EXPECT_EQ(worker_->params(2)[5], std::byte{9});
  EXPECT_EQ(worker_->grads(2).size(), 0);  // frozen
  EXPECT_EQ(worker_->params(3).size(), 0);
  EXPECT_EQ(worker_->grads(-1).size(), 0);
}

TEST_F(WorkerTest, SaysWhereTheWeightsLie) {
  Start();
  const auto place = worker_->FindWeights(2);
  ASSERT_THAT(place, IsOk());
  EXPECT_EQ(place->offset, 128);
  auto mapped =
      base::Segment::Map(base::UniqueFd(dup(place->fd)), place->segment_bytes,
                         base::Access::kReadOnly);
  ASSERT_THAT(mapped, IsOk());
  daemon_->weights()[128 + 5] = std::byte{9};
  EXPECT_EQ(mapped->bytes()[place->offset + 5], std::byte{9});
  EXPECT_THAT(worker_->FindWeights(7),
              StatusIs(absl::StatusCode::kInvalidArgument, "tensor 7"));
  EXPECT_THAT(worker_->Detach(absl::Seconds(5)), IsOk());
  EXPECT_THAT(worker_->FindWeights(2),
              StatusIs(absl::StatusCode::kFailedPrecondition, "detached"));
}

TEST_F(WorkerTest, PushedBucketsGoEarly) {
  Start();
  EXPECT_THAT(worker_->Push(1), IsOk());
  EXPECT_EQ(daemon_->pushed(0), 0);
  EXPECT_EQ(daemon_->pushed(1), SequenceWord(1, 1));
  EXPECT_NE(daemon_->step_input(), SequenceWord(1, 1));
  EXPECT_THAT(worker_->Push(2), StatusIs(absl::StatusCode::kInvalidArgument,
                                         "tensor \"frozen\" is frozen"));
  EXPECT_THAT(worker_->Push(3), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(StepWith([&] { Serve(SequenceWord(1, 1)); }), IsOk());
}

TEST_F(WorkerTest, ReturnsAtCommitIfAsked) {  // I2
  Start();
  const uint64_t word = SequenceWord(1, 1);
  const auto result = StepWith(
      [&] {
        daemon_->AwaitPushed(word);
        daemon_->Commit(word);
      },
      {.wait_published = false});
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(worker_->Wait(0, kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "weights of step 1 were on the way"));
  EXPECT_THAT(worker_->Wait(2, kShort), IsOk());  // frozen
  daemon_->Publish(word);
  EXPECT_THAT(worker_->Wait(0, kShort), IsOk());
  EXPECT_THAT(worker_->WaitAll(kShort), IsOk());
}

TEST_F(WorkerTest, DeadlineSaysForWhomAndTheStepGoesOn) {  // I23
  Start();
  EXPECT_THAT(worker_->Step({.cursor = "first", .timeout = kShort}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1 is late"));
  EXPECT_EQ(worker_->open_step(), 1);
  const auto result =
      StepWith([&] { Serve(SequenceWord(1, 1)); }, {.cursor = "first"});
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(worker_->cursor(), "first");
}

TEST_F(WorkerTest, ARepeatWithOtherValuesIsRefused) {  // I21
  Start();
  const uint64_t word = SequenceWord(1, 1);
  const auto refused = [&](StepRequest request, const std::string& part) {
    request.timeout = kShort;  // not refused, it would wait
    EXPECT_THAT(
        worker_->Step(request),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 "step 1 was already handed over with other values: " + part));
  };
  EXPECT_THAT(worker_->Step({.cursor = "first", .timeout = kShort}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  refused({.cursor = "second"}, "the cursor");
  worker_->groups()[0].lr = 0.25;
  refused({.cursor = "first"}, "lr of group 0 (0.5 then, 0.25 now)");
  worker_->groups()[0].lr = 0.5;
  daemon_->Commit(word);  // not yet published
  EXPECT_THAT(worker_->Step({.cursor = "first", .timeout = kShort}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  refused({.cursor = "second"}, "the cursor");
  daemon_->Publish(word);
  EXPECT_THAT(worker_->Step({.cursor = "first"}), IsOk());
  worker_->groups()[0].lr = 0.25;  // of the next step
  EXPECT_THAT(
      StepWith([&] { Serve(SequenceWord(1, 2)); }, {.cursor = "second"}),
      IsOk());
}

TEST_F(WorkerTest, DeadlineAfterCommitDoesNotPushAgain) {  // I19
  Start();
  const uint64_t word = SequenceWord(1, 1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(worker_->Step({.timeout = kShort}),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_EQ(worker_->open_step(), 1);
    if (i == 0) daemon_->Commit(word);
  }
  EXPECT_THAT(worker_->Push(0),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  daemon_->Publish(word);
  const auto again = worker_->Step({});
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->step, 1);
  EXPECT_EQ(daemon_->pushed(0), word);
  EXPECT_EQ(worker_->open_step(), 2);
}

TEST_F(WorkerTest, AbortedStepIsRepeatedInTheNewGeneration) {  // I19
  Start();
  const auto aborted = StepWith([&] {
    daemon_->AwaitPushed(SequenceWord(1, 1));
    daemon_->Fail(absl::StatusCode::kAborted, false, SequenceWord(1, 1),
                  "node 2 left");
    daemon_->Open(SequenceWord(2, 1));
  });
  EXPECT_THAT(aborted, StatusIs(absl::StatusCode::kAborted, "node 2 left"));
  EXPECT_EQ(ResumeStep(aborted.status()), 1);
  EXPECT_EQ(worker_->open_step(), 1);
  EXPECT_EQ(worker_->generation(), 2);
  EXPECT_THAT(StepWith([&] { Serve(SequenceWord(2, 1)); }), IsOk());
}

TEST_F(WorkerTest, RollbackNamesTheStepToResume) {
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.begin.set_open_step(9);
  Start(script);
  const auto aborted = StepWith([&] {
    daemon_->AwaitPushed(SequenceWord(1, 9));
    daemon_->Open(SequenceWord(2, 4));
    daemon_->Fail(absl::StatusCode::kAborted, false, SequenceWord(1, 9),
                  "a node is lost");
  });
  EXPECT_EQ(ResumeStep(aborted.status()), 4);
  EXPECT_EQ(worker_->open_step(), 4);
  EXPECT_THAT(StepWith([&] { Serve(SequenceWord(2, 4)); }), IsOk());
}

TEST_F(WorkerTest, NewGenerationBeforeAnyPushIsTakenSilently) {
  Start();
  daemon_->Open(SequenceWord(3, 1));
  EXPECT_THAT(StepWith([&] { Serve(SequenceWord(3, 1)); }), IsOk());
}

TEST_F(WorkerTest, NewGenerationAfterAPushIsToldAtTheNextCall) {
  Start();
  EXPECT_THAT(worker_->Push(0), IsOk());
  daemon_->Open(SequenceWord(2, 1));
  const absl::Status status = worker_->Push(1);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(ResumeStep(status), 1);
  EXPECT_THAT(StepWith([&] { Serve(SequenceWord(2, 1)); }), IsOk());
}

TEST_F(WorkerTest, WrongInputIsToldWithItsOwnCode) {
  Start();
  const auto refused = StepWith([&] {
    daemon_->AwaitPushed(SequenceWord(1, 1));
    daemon_->Fail(absl::StatusCode::kInvalidArgument, false, SequenceWord(1, 1),
                  "lr of group 0 differs: rank 0 0.1");
    daemon_->Open(SequenceWord(2, 1));
  });
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument,
                                "lr of group 0 differs"));
  EXPECT_EQ(ResumeStep(refused.status()), 1);
}

TEST_F(WorkerTest, EndOfTheJobEndsTheSession) {  // I23
  Start();
  const auto failed = StepWith([&] {
    daemon_->Fail(absl::StatusCode::kUnavailable, true, 0, "draining");
  });
  EXPECT_THAT(failed, StatusIs(absl::StatusCode::kUnavailable, "draining"));
  EXPECT_EQ(ResumeStep(failed.status()), std::nullopt);
  EXPECT_THAT(worker_->Step({}),
              StatusIs(absl::StatusCode::kUnavailable, "draining"));
  EXPECT_EQ(worker_->params(0).size(), 64);  // still there
}

TEST_F(WorkerTest, DeadDaemonIsNoticed) {  // I23
  Start();
  const auto failed = StepWith([&] {
    daemon_->AwaitPushed(SequenceWord(1, 1));
    daemon_->HangUp();
  });
  EXPECT_THAT(failed, StatusIs(absl::StatusCode::kUnavailable,
                               "went away during step 1"));
  EXPECT_THAT(worker_->Push(0), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(WorkerTest, SuccessorPushesOnlyWhatIsMissing) {  // I19
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.begin.set_open_step(5);
  script.begin.set_cursor("four");
  script.begin.set_rank0_cursor("rank 0's four");
  script.begin.add_pushed_buckets(1);
  Start(script);
  EXPECT_EQ(worker_->open_step(), 5);
  EXPECT_EQ(worker_->cursor(), "four");
  EXPECT_EQ(worker_->rank0_cursor(), "rank 0's four");
  const uint64_t word = SequenceWord(1, 5);
  const auto result = StepWith([&] {
    while (daemon_->pushed(0) != word || daemon_->step_input() != word) {
      std::this_thread::yield();
    }
    daemon_->Commit(word);
    daemon_->Publish(word);
  });
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(daemon_->pushed(1), 0);
}

// What the former worker pushed may be on its way into a sum while its
// successor clears and computes it again.
TEST_F(WorkerTest, SuccessorComputesBesideWhatWasPushed) {  // I19, I20
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.begin.add_pushed_buckets(1);
  Start(script);
  const auto fill = [&](int value) {
    for (const int tensor : {0, 1}) {
      for (std::byte& byte : worker_->grads(tensor)) byte = std::byte(value);
    }
  };
  const auto shown = [&](int value) {
    return std::ranges::count(daemon_->gradients(), std::byte(value));
  };
  const auto all = shown(0);
  fill(7);
  EXPECT_EQ(shown(0), all);
  const uint64_t word =
      SequenceWord(script.begin.generation(), script.begin.open_step());
  ASSERT_THAT(StepWith([&] {
                while (daemon_->step_input() != word) std::this_thread::yield();
                daemon_->Commit(word);
                daemon_->Publish(word);
              }),
              IsOk());
  EXPECT_GT(shown(7), 0);
  const auto pushed = shown(7);
  EXPECT_EQ(worker_->grads(0)[0], std::byte(7));
  fill(9);
  EXPECT_EQ(shown(9), pushed) << "shared again";
}

// Step 5, all of which the former worker gave.
FakeDaemon::Script GivenStep(bool has_input = true) {
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.begin.set_open_step(5);
  script.begin.set_weight_version(4);
  script.begin.set_cursor("after 4");
  script.begin.add_pushed_buckets(0);
  script.begin.add_pushed_buckets(1);
  script.begin.set_has_step_input(has_input);
  if (has_input) script.begin.set_step_cursor("after 5");
  script.in_begin = [](FakeDaemon& daemon, v1::BeginReply& reply) {
    daemon.Publish(SequenceWord(1, reply.weight_version()));
    for (std::byte& byte : daemon.weights()) byte = std::byte(4);
  };
  return script;
}

TEST_F(WorkerTest, WeightsStayUnderAStepThatTheFormerWorkerGave) {  // I20
  const uint64_t word = SequenceWord(1, 5);
  const auto commit = [&] {
    daemon_->Commit(word);
    for (std::byte& byte : daemon_->weights()) byte = std::byte(5);
    daemon_->Publish(word);
  };
  Start(GivenStep());
  EXPECT_TRUE(worker_->is_step_given());
  EXPECT_EQ(worker_->open_step(), 5);
  EXPECT_EQ(worker_->cursor(), "after 4");
  const std::byte* const place = worker_->params(0).data();
  commit();
  EXPECT_EQ(worker_->params(0)[0], std::byte(4));
  EXPECT_EQ(worker_->weight_version(), 4);
  const auto result = worker_->Step({.cursor = "computed again"});
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->step, 5);
  EXPECT_EQ(daemon_->pushed(0), 0);
  EXPECT_EQ(worker_->cursor(), "after 5");  // what counts
  EXPECT_EQ(worker_->params(0)[0], std::byte(5));
  EXPECT_EQ(worker_->params(0).data(), place);
  EXPECT_FALSE(worker_->is_step_given());
  EXPECT_EQ(worker_->open_step(), 6);

  // A step whose input is missing cannot commit: nothing is copied.
  worker_.reset();
  Start(GivenStep(/*has_input=*/false));
  EXPECT_FALSE(worker_->is_step_given());
  commit();
  EXPECT_EQ(worker_->params(0)[0], std::byte(5));
  ASSERT_THAT(worker_->Step({.cursor = "mine"}), IsOk());
  EXPECT_EQ(worker_->cursor(), "mine");
}

TEST_F(WorkerTest, AVoidedStepThatTheFormerWorkerGaveIsComputedAnew) {
  Start(GivenStep());
  for (std::byte& byte : daemon_->weights()) byte = std::byte(6);
  daemon_->Fail(absl::StatusCode::kAborted, false, SequenceWord(1, 5), "again");
  daemon_->Open(SequenceWord(2, 5));
  const auto voided = worker_->Step({});
  EXPECT_EQ(ResumeStep(voided.status()), 5);
  EXPECT_FALSE(worker_->is_step_given());
  EXPECT_EQ(worker_->params(0)[0], std::byte(6));
  ASSERT_THAT(StepWith([&] { Serve(SequenceWord(2, 5)); }, {.cursor = "new"}),
              IsOk());
  EXPECT_EQ(worker_->cursor(), "new");
}

TEST_F(WorkerTest, AGivenStepThatEndsDuringTheOpeningIsNotComputed) {  // I20
  FakeDaemon::Script script = GivenStep();
  int begins = 0;
  script.in_begin = [&begins, first = script.in_begin](FakeDaemon& daemon,
                                                       v1::BeginReply& reply) {
    if (++begins == 1) {
      first(daemon, reply);
      daemon.Commit(SequenceWord(1, 5));
      return;  // as of before the commit
    }
    daemon.Publish(SequenceWord(1, 5));
    reply.set_open_step(6);
    reply.set_weight_version(5);
    reply.set_cursor("after 5");
    reply.clear_pushed_buckets();
    reply.set_has_step_input(false);
  };
  Start(script);
  EXPECT_EQ(begins, 2);
  EXPECT_EQ(worker_->open_step(), 6);
  EXPECT_EQ(worker_->cursor(), "after 5");
  EXPECT_FALSE(worker_->is_step_given());
  for (std::byte& byte : daemon_->weights()) byte = std::byte(9);
  EXPECT_EQ(worker_->params(0)[0], std::byte(9)) << "shared again";
  ASSERT_THAT(StepWith([&] { Serve(SequenceWord(1, 6)); }), IsOk());
}

TEST_F(WorkerTest, OpeningWaitsForTheWeightsOfTheStepBefore) {  // I2
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.begin.set_open_step(5);
  script.begin.set_weight_version(4);
  FakeDaemon late(script);
  Options options = MakeOptions(late);
  options.open_timeout = absl::Seconds(2);  // for all that comes before, too
  EXPECT_THAT(Worker::Open(options),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "while the weights of step 4 were on the way"));
  // In whatever generation they came.
  script.begin.set_generation(3);
  script.in_begin = [](FakeDaemon& daemon, v1::BeginReply&) {
    daemon.Publish(SequenceWord(1, 4));
  };
  Start(script);
  EXPECT_EQ(worker_->open_step(), 5);
}

TEST_F(WorkerTest, SuccessorFindsItsStepCommitted) {  // I19
  Start();
  daemon_->Commit(SequenceWord(1, 1));
  daemon_->Publish(SequenceWord(1, 1));
  EXPECT_THAT(worker_->Push(0), IsOk());
  const auto result = worker_->Step({});
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->step, 1);
  EXPECT_EQ(daemon_->pushed(0), 0);
  EXPECT_EQ(worker_->open_step(), 2);
}

TEST_F(WorkerTest, RefusesSegmentsThatLie) {  // I27
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.weights_lie = 4096;
  FakeDaemon daemon(script);
  EXPECT_THAT(Worker::Open(MakeOptions(daemon)),
              StatusIs(absl::StatusCode::kDataLoss, "not announced"));
}

TEST_F(WorkerTest, RefusalIsReturnedAtOnce) {
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.refuse_hello = true;
  FakeDaemon daemon(script);
  EXPECT_THAT(Worker::Open(MakeOptions(daemon)),
              StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(WorkerTest, PassingRefusalsAreTriedAgain) {
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.passing_refusals = 2;  // of Hello, then of Attach
  Start(script);
  EXPECT_THAT(StepWith([&] { Serve(SequenceWord(1, 1)); }), IsOk());
}

TEST_F(WorkerTest, PassingRefusalsAreReturnedInTheEnd) {  // I23
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.passing_refusals = 1000;
  FakeDaemon daemon(script);
  Options options = MakeOptions(daemon);
  options.connect_timeout = absl::Seconds(1);
  EXPECT_THAT(Worker::Open(options),
              StatusIs(absl::StatusCode::kResourceExhausted, "try again"));
}

TEST_F(WorkerTest, ARefusalIsNotHiddenByTheSilenceAfterIt) {  // I23
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.passing_refusals = 1;
  script.is_deaf = true;
  FakeDaemon daemon(script);
  Options options = MakeOptions(daemon);
  options.connect_timeout = absl::Seconds(1);
  EXPECT_THAT(Worker::Open(options),
              StatusIs(absl::StatusCode::kResourceExhausted, "try again"));
}

// What a former worker gave may have ended: this job has begun, and goes with
// its daemon.
TEST_F(WorkerTest, ADaemonThatDiesAfterBeginIsNamed) {  // I23
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.in_begin = [](FakeDaemon& fake, v1::BeginReply&) {
    fake.Open(SequenceWord(1, 2));
  };
  script.on_begin = [](FakeDaemon& fake, int number) {
    if (number == 2) fake.HangUp();
    return absl::OkStatus();
  };
  FakeDaemon daemon(script);
  EXPECT_THAT(Worker::Open(MakeOptions(daemon)),
              StatusIs(absl::StatusCode::kUnavailable,
                       "the daemon at " + daemon.address() + " went away"));
  EXPECT_EQ(daemon.num_attached(), 1);
}

TEST_F(WorkerTest, AStoppedDaemonIsNamed) {  // I23
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.is_stopped = true;
  Start(script);
  const std::string text =
      "the daemon at " + daemon_->address() + " did not answer ";
  const auto code = absl::StatusCode::kDeadlineExceeded;
  EXPECT_THAT(worker_->Stats(kShort), StatusIs(code, text + "stats within"));
  EXPECT_THAT(worker_->Close(kShort), StatusIs(code, text + "close within"));
}

TEST_F(WorkerTest, CursorIsBounded) {
  Start();
  const std::string large(proto::kMaxCursorBytes + 1, 'x');
  EXPECT_THAT(worker_->Step({.cursor = large}),
              StatusIs(absl::StatusCode::kInvalidArgument, "65537"));
  EXPECT_THAT(StepWith([&] { Serve(SequenceWord(1, 1)); },
                       {.cursor = std::string_view(large).substr(1)}),
              IsOk());
}

TEST_F(WorkerTest, InterruptEndsTheWait) {
  daemon_ = std::make_unique<FakeDaemon>(FakeDaemon::DefaultScript());
  Options options = MakeOptions(*daemon_);
  bool is_interrupted = false;
  options.interrupted = [&] { return is_interrupted; };
  auto worker = Worker::Open(options);
  ASSERT_THAT(worker, IsOk());
  is_interrupted = true;
  EXPECT_THAT((*worker)->Step({}), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(WorkerTest, ForkedChildCanNeitherUseNorEndIt) {
  Start();
  const pid_t child = fork();
  if (child == 0) {
    const absl::Status status = worker_->Step({}).status();
    const bool is_refused =
        status.code() == absl::StatusCode::kFailedPrecondition &&
        status.message().find("forked child") != absl::string_view::npos;
    worker_.reset();
    _exit(is_refused ? 0 : 1);
  }
  int end = -1;
  waitpid(child, &end, 0);
  EXPECT_EQ(end, 0);
  EXPECT_THAT(StepWith([&] { Serve(SequenceWord(1, 1)); }), IsOk());
}

TEST_F(WorkerTest, DetachAndCloseEndIt) {
  Start();
  EXPECT_THAT(worker_->Detach(absl::Seconds(5)), IsOk());
  EXPECT_EQ(daemon_->num_detached(), 1);
  EXPECT_THAT(worker_->Close(absl::Seconds(5)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "detached"));
  EXPECT_EQ(worker_->params(0).size(), 64);
  Start();
  EXPECT_THAT(worker_->Close(absl::Seconds(5)), IsOk());
  EXPECT_EQ(daemon_->num_closed(), 1);
}

TEST_F(WorkerTest, ACloseThatIsRecordedNeedsNoReply) {  // I2
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.dies_in_close = true;
  Start(script);
  EXPECT_THAT(worker_->Close(absl::Seconds(5)),
              StatusIs(absl::StatusCode::kUnavailable, "went away (close"));
  script.records_close = true;
  Start(script);
  EXPECT_THAT(worker_->Close(absl::Seconds(5)), IsOk());
  EXPECT_THAT(worker_->Close(absl::Seconds(5)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "closed"));
}

TEST_F(WorkerTest, ViewsAreFrozenByDetachAndClose) {
  for (const auto end : {&Worker::Detach, &Worker::Close}) {
    Start();
    daemon_->weights()[5] = std::byte{1};
    worker_->grads(0)[3] = std::byte{2};
    const std::byte* const place = worker_->params(0).data();
    EXPECT_THAT((worker_.get()->*end)(absl::Seconds(5)), IsOk());
    daemon_->weights()[5] = std::byte{7};  // a successor's step
    worker_->grads(0)[3] = std::byte{9};
    EXPECT_EQ(worker_->params(0).data(), place);
    EXPECT_EQ(worker_->params(0)[5], std::byte{1});
    EXPECT_EQ(daemon_->gradients()[3], std::byte{2});
  }
}

TEST_F(WorkerTest, StatsAreTheDaemons) {
  Start();
  EXPECT_THAT(*worker_->Stats(absl::Seconds(5)),
              ::testing::HasSubstr("waiting_for"));
}

TEST(WaitingForTest, IsFoundAnywhere) {
  EXPECT_EQ(WaitingFor(R"({"a": [{"waiting_for": "x"}]})"), "x");
  EXPECT_EQ(WaitingFor(R"({"waiting_for": 3})"), "");
  EXPECT_EQ(WaitingFor("{"), "");
  EXPECT_EQ(WaitingFor(""), "");
}

}  // namespace
}  // namespace ballast::worker
