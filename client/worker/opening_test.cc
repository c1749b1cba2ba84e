#include "client/worker/opening.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::worker {
namespace {

using base::IsOk;
using base::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

class OpeningTest : public ::testing::Test {
 protected:
  absl::Time At(int seconds) const { return start_ + absl::Seconds(seconds); }

  absl::Status Fail(AttemptEnd how, int at,
                    std::string text = "Socket closed") {
    return opening_.OnFailed(how, absl::UnavailableError(text), At(at));
  }

  const absl::Time start_ = absl::FromUnixSeconds(1000);
  Opening opening_{{.address = "unix:///b.sock",
                    .connect_timeout = absl::Seconds(30),
                    .open_timeout = absl::Seconds(600)},
                   start_};
};

TEST_F(OpeningTest, FinalErrorsAreReturnedAtOnce) {
  const absl::Status refusal = absl::InvalidArgumentError("lr is negative");
  EXPECT_EQ(opening_.OnFailed(AttemptEnd::kFinal, refusal, At(0)), refusal);
  ASSERT_THAT(Fail(AttemptEnd::kLost, 1), IsOk());
  EXPECT_EQ(opening_.OnFailed(AttemptEnd::kFinal, refusal, At(2)), refusal);
}

TEST_F(OpeningTest, WithoutALossTheConnectTimeoutCounts) {  // I23
  EXPECT_EQ(opening_.patience(), At(30));
  EXPECT_THAT(Fail(AttemptEnd::kPassing, 29, "try again"), IsOk());
  EXPECT_EQ(Fail(AttemptEnd::kPassing, 30, "try again"),
            absl::UnavailableError("try again"));
  EXPECT_EQ(Fail(AttemptEnd::kAbsent, 1, "no daemon"),
            absl::UnavailableError("no daemon"));
  EXPECT_EQ(opening_.TakeNews(At(31)), "");
}

TEST_F(OpeningTest, AfterALossTheOpenTimeoutCounts) {  // I23
  for (const AttemptEnd how : {AttemptEnd::kLost, AttemptEnd::kEnded}) {
    Opening opening({"unix:///b.sock", absl::Seconds(30), absl::Seconds(600)},
                    start_);
    const absl::Status why = absl::UnavailableError("why");
    EXPECT_THAT(opening.OnFailed(how, why, At(100)), IsOk());
    EXPECT_EQ(opening.patience(), At(600));
    EXPECT_EQ(opening.deadline(), At(600));
    EXPECT_THAT(opening.OnFailed(AttemptEnd::kAbsent, why, At(599)), IsOk());
    EXPECT_THAT(opening.OnFailed(AttemptEnd::kPassing, why, At(599)), IsOk());
    EXPECT_THAT(opening.OnFailed(how, why, At(600)), StatusIs(kUnavailable));
  }
}

TEST_F(OpeningTest, TheOpenTimeoutBoundsTheConnectTimeout) {
  const Opening opening({"unix:///b.sock", absl::Seconds(30), absl::Seconds(5)},
                        start_);
  EXPECT_EQ(opening.patience(), At(5));
}

TEST_F(OpeningTest, TheErrorNamesDaemonTimesAndReasons) {  // I23
  ASSERT_THAT(Fail(AttemptEnd::kLost, 100), IsOk());
  ASSERT_THAT(Fail(AttemptEnd::kEnded, 200, "node 1 is silent"), IsOk());
  EXPECT_THAT(
      std::string(
          Fail(AttemptEnd::kAbsent, 600, "no daemon; start it").message()),
      AllOf(HasSubstr("the daemon at unix:///b.sock went away while the "
                      "session was opening (Socket closed)"),
            HasSubstr("in the 8m20s that were left of the open timeout of 10m"),
            HasSubstr("lost 2 times; last: no daemon; start it")));
}

TEST_F(OpeningTest, ADaemonThatWasSilentInTheEndIsNamedWithARemedy) {  // I23
  ASSERT_THAT(Fail(AttemptEnd::kLost, 100), IsOk());
  EXPECT_THAT(
      std::string(opening_
                      .OnFailed(AttemptEnd::kAbsent,
                                absl::DeadlineExceededError("no answer"),
                                At(600))
                      .message()),
      AllOf(HasSubstr("went away while the session was opening"),
            HasSubstr("last: no answer; see the daemon's log, start it")));
}

// A job that waits for others says for whom; what came before is said too.
TEST_F(OpeningTest, AJobThatDoesNotStartAfterALossIsFinal) {  // I23
  const absl::Status waits = absl::DeadlineExceededError("it waits: rank 1");
  EXPECT_EQ(opening_.OnFailed(AttemptEnd::kFinal, waits, At(1)), waits);
  ASSERT_THAT(Fail(AttemptEnd::kLost, 100), IsOk());
  EXPECT_EQ(opening_.OnFailed(AttemptEnd::kFinal, waits, At(600)),
            absl::DeadlineExceededError(
                "it waits: rank 1; before, the daemon at unix:///b.sock went "
                "away while the session was opening (Socket closed)"));
}

TEST_F(OpeningTest, NoAttemptBeginsWithoutTime) {  // I23
  ASSERT_THAT(Fail(AttemptEnd::kPassing, 29, "full: try again"), IsOk());
  EXPECT_THAT(opening_.CheckTime(At(29)), IsOk());
  EXPECT_EQ(opening_.CheckTime(At(30)),
            absl::UnavailableError("full: try again"));
  ASSERT_THAT(Fail(AttemptEnd::kLost, 29), IsOk());
  EXPECT_THAT(opening_.CheckTime(At(599)), IsOk());
  EXPECT_THAT(opening_.CheckTime(At(600)),
              StatusIs(kUnavailable, "in the 9m31s that were left"));
}

TEST_F(OpeningTest, ALossThatComesTooLateIsTheError) {
  EXPECT_THAT(std::string(Fail(AttemptEnd::kEnded, 600, "draining").message()),
              AllOf(HasSubstr("ended the session while it was opening "
                              "(draining)"),
                    HasSubstr("start it again and open the session anew")));
}

TEST_F(OpeningTest, ALossIsToldOnce) {
  EXPECT_EQ(opening_.TakeNews(At(0)), "");
  ASSERT_THAT(Fail(AttemptEnd::kLost, 100), IsOk());
  EXPECT_EQ(opening_.TakeNews(At(100)),
            "the daemon at unix:///b.sock went away while the session was "
            "opening (Socket closed): looking for it and opening anew, for "
            "8m20s at most");
  ASSERT_THAT(Fail(AttemptEnd::kLost, 101), IsOk());
  EXPECT_EQ(opening_.TakeNews(At(101)), "");
}

}  // namespace
}  // namespace ballast::worker
