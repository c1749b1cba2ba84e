#include "server/daemon/resumption.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::daemon {
namespace {

v1::PeerFrame CommitOf(int64_t step, int64_t generation = 3) {
  v1::PeerFrame frame;
  frame.set_generation(generation);
  frame.mutable_commit()->set_step(step);
  return frame;
}

v1::PeerFrame AbortOf(int64_t step, int64_t next) {
  v1::PeerFrame frame;
  frame.set_generation(next - 1);
  frame.mutable_abort()->set_step(step);
  frame.mutable_abort()->set_next_generation(next);
  return frame;
}

// "generation 3, step 8 open, 7 to be carried out"
std::string What(const absl::StatusOr<Resumption>& result) {
  if (!result.ok()) return std::string(result.status().message());
  std::string text = "generation " +
                     std::to_string(result->generation.value()) + ", step " +
                     std::to_string(result->open_step.value()) + " open";
  if (result->commit.has_value()) {
    text +=
        ", " + std::to_string(result->commit->step()) + " to be carried out";
  }
  if (result->abort.has_value()) text += ", aborted before";
  return text;
}

TEST(ResumptionTest, GoesOnWhereItWas) {  // I19, I20
  EXPECT_EQ(What(Resume(std::nullopt, Step(0), Step(0))),
            "generation 1, step 1 open");
  // From a snapshot of step 40.
  EXPECT_EQ(What(Resume(std::nullopt, Step(40), Step(40))),
            "generation 1, step 41 open");
  EXPECT_EQ(What(Resume(CommitOf(7), Step(7), Step(7))),
            "generation 3, step 8 open");
  EXPECT_EQ(What(Resume(CommitOf(7), Step(7), Step(6))),
            "generation 3, step 8 open, 7 to be carried out");
}

TEST(ResumptionTest, RepeatsAVoteThatNobodyWasToldOf) {
  EXPECT_EQ(What(Resume(CommitOf(8), Step(7), Step(7))),
            "generation 3, step 8 open");
}

TEST(ResumptionTest, OpensAnAbortedStepInItsNextGeneration) {
  EXPECT_EQ(What(Resume(AbortOf(8, 4), Step(7), Step(7))),
            "generation 4, step 8 open, aborted before");
}

TEST(ResumptionTest, RefusesWhatContradictsItself) {
  const auto refused = [](const std::optional<v1::PeerFrame>& outcome,
                          int64_t state, int64_t finished) {
    const auto result = Resume(outcome, Step(state), Step(finished));
    return absl::IsDataLoss(result.status());
  };
  EXPECT_TRUE(refused(std::nullopt, 1, 0));    // no scalars of the update
  EXPECT_TRUE(refused(CommitOf(7), 7, 5));     // step 6 is missing
  EXPECT_TRUE(refused(CommitOf(7), 7, 8));     // published before it was
  EXPECT_TRUE(refused(CommitOf(9), 7, 7));     // step 8 is missing
  EXPECT_TRUE(refused(CommitOf(8), 7, 6));     // voted before published
  EXPECT_TRUE(refused(CommitOf(6), 7, 7));     // an old outcome
  EXPECT_TRUE(refused(AbortOf(8, 4), 7, 6));   // voted before published
  EXPECT_TRUE(refused(AbortOf(7, 4), 7, 7));   // of a committed step
  EXPECT_TRUE(refused(CommitOf(7, 0), 7, 7));  // no generation
  EXPECT_TRUE(refused(CommitOf(7, -1), 7, 7));
  EXPECT_TRUE(refused(AbortOf(8, int64_t{1} << 40), 7, 7));
  EXPECT_TRUE(refused(v1::PeerFrame(), 7, 7));  // neither
  EXPECT_TRUE(refused(CommitOf(-1), -2, -2));
}

}  // namespace
}  // namespace ballast::daemon
