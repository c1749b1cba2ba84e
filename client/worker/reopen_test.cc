// A session that is lost before it has begun is opened anew, and what was
// handed over is handed over again.
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/worker/fake_daemon.h"
#include "client/worker/options.h"
#include "client/worker/worker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::worker {
namespace {

using base::IsOk;
using base::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kShort = absl::Seconds(3);  // a loaded machine opens in it

class ReopenTest : public ::testing::Test {
 protected:
  // A tensor of 16 floats, all of them 1.5.
  absl::StatusOr<std::unique_ptr<Worker>> Open(
      absl::Duration open_timeout = absl::Minutes(5)) {
    Options options;
    options.address = daemon_->address();
    options.job.set_name("job");
    auto* tensor = options.job.add_tensors();
    tensor->set_name("w");
    tensor->add_shape(16);
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    options.job.mutable_optimizer()->add_groups()->set_lr(0.5);
    options.topology.set_world_size(1);
    options.topology.set_local_world_size(1);
    options.initial_values = {std::as_bytes(std::span(values_))};
    options.open_timeout = open_timeout;
    options.interrupted = [this] {
      if (interrupts_once_ && daemon_->num_attached() > 0) {
        return !std::exchange(was_interrupted_, true);
      }
      return interrupts_after_loss_ && !lines_.empty();
    };
    options.log = [this](const std::string& line) { lines_.push_back(line); };
    return Worker::Open(std::move(options));
  }

  void Start(FakeDaemon::Script script) {
    daemon_ = std::make_unique<FakeDaemon>(std::move(script));
  }

  float last_initial() {
    float value;
    std::memcpy(&value, &daemon_->initial()[60], sizeof(value));
    return value;
  }

  const std::vector<float> values_ = std::vector<float>(16, 1.5f);
  std::vector<std::string> lines_;
  bool interrupts_after_loss_ = false;
  bool interrupts_once_ = false;  // when it is asked first after an attach
  bool was_interrupted_ = false;
  std::unique_ptr<FakeDaemon> daemon_;
};

TEST_F(ReopenTest, ADaemonThatDiesBeforeTheJobBeginsIsWaitedFor) {
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.deaths_in_begin = 2;
  Start(script);
  const auto worker = Open();
  ASSERT_THAT(worker, IsOk());
  EXPECT_EQ(daemon_->num_attached(), 3);
  EXPECT_EQ(last_initial(), 1.5f) << "of the last life's segment";
  EXPECT_THAT(lines_,
              ElementsAre(AllOf(HasSubstr(daemon_->address()),
                                HasSubstr("went away while the session was "
                                          "opening"))));
}

TEST_F(ReopenTest, WithoutALossNothingIsSaidOrDoneTwice) {  // the control
  Start(FakeDaemon::DefaultScript());
  ASSERT_THAT(Open(), IsOk());
  EXPECT_EQ(daemon_->num_attached(), 1);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(ReopenTest, ADaemonThatDrainsIsWaitedFor) {
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.on_attach = [](int number) {
    return number == 1 ? absl::UnavailableError("daemon is draining")
                       : absl::OkStatus();
  };
  script.on_begin = [](FakeDaemon& fake, int number) {
    if (number == 2) return absl::OkStatus();
    const auto why = absl::UnavailableError("daemon is draining");
    fake.Fail(why.code(), /*is_fatal=*/true, 0, "daemon is draining");
    return why;
  };
  Start(script);
  ASSERT_THAT(Open(), IsOk());
  EXPECT_EQ(daemon_->num_attached(), 3);
  EXPECT_THAT(lines_,
              ElementsAre(HasSubstr("ended the session while it was opening "
                                    "(daemon is draining)")));
}

TEST_F(ReopenTest, ALeaseThatIsGoneIsAskedForAgain) {
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.on_begin = [](FakeDaemon&, int number) {
    return number == 1 ? absl::FailedPreconditionError(
                             "this connection has no lease (any more): "
                             "connect again")
                       : absl::OkStatus();
  };
  Start(script);
  ASSERT_THAT(Open(), IsOk());
  EXPECT_EQ(daemon_->num_attached(), 2);
}

TEST_F(ReopenTest, ADaemonThatStaysAwayIsAnError) {  // I23
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.deaths_in_begin = 1;
  script.comes_back = false;
  Start(script);
  EXPECT_THAT(
      std::string(Open(kShort).status().message()),
      AllOf(HasSubstr("the daemon at " + daemon_->address() +
                      " went away while the session was opening"),
            HasSubstr("open timeout of 3s (open_timeout"),
            HasSubstr("last: no daemon at " + daemon_->address() + ": tried "),
            HasSubstr("start ballastd there")));
  EXPECT_EQ(lines_.size(), 1);
}

TEST_F(ReopenTest, ADaemonThatDiesAgainAndAgainIsAnError) {  // I23
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.deaths_in_begin = 1'000'000;
  Start(script);
  // DeadlineExceeded where it ends within an attempt.
  EXPECT_THAT(std::string(Open(kShort).status().message()),
              HasSubstr("the daemon at " + daemon_->address() +
                        " went away while the session was opening"));
  EXPECT_GT(daemon_->num_attached(), 1);
  EXPECT_EQ(lines_.size(), 1);
}

TEST_F(ReopenTest, WhatTheNextDaemonRefusesIsFinal) {
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.deaths_in_begin = 1;
  script.on_attach = [](int number) {
    return number == 1 ? absl::OkStatus()
                       : absl::InvalidArgumentError("another layout");
  };
  Start(script);
  EXPECT_THAT(Open(),
              StatusIs(absl::StatusCode::kInvalidArgument, "another layout"));
  EXPECT_EQ(daemon_->num_attached(), 2);
}

TEST_F(ReopenTest, TheDaemonsOtherWordsAreFinal) {
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.on_begin = [](FakeDaemon& fake, int) {
    const auto why = absl::FailedPreconditionError("rank 1 closed the job");
    fake.Fail(why.code(), /*is_fatal=*/true, 0, "rank 1 closed the job");
    return why;
  };
  Start(script);
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(ReopenTest, AnInterruptEndsTheWait) {
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.deaths_in_begin = 1;
  script.comes_back = false;
  Start(script);
  interrupts_after_loss_ = true;
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(ReopenTest, AnInterruptIsNotForgotten) {
  for (const int deaths : {0, 1}) {
    FakeDaemon::Script script = FakeDaemon::DefaultScript();
    script.deaths_in_begin = deaths;
    Start(script);
    interrupts_once_ = true;
    was_interrupted_ = false;
    EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kCancelled)) << deaths;
    EXPECT_TRUE(was_interrupted_);
  }
}

}  // namespace
}  // namespace ballast::worker
