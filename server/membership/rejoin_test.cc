#include "server/membership/rejoin.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::membership {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::Join At(int64_t state, int64_t finished, int64_t generation = 3) {
  v1::Join join;
  join.set_has_state(true);
  join.set_generation(generation);
  join.set_weight_version(state);
  join.set_optimizer_step(state);
  join.mutable_progress()->set_finished_step(finished);
  return join;
}

v1::Join Committed(int64_t step, int64_t state, int64_t finished,
                   double norm = 1) {
  v1::Join join = At(state, finished);
  v1::Outcome* const outcome = join.mutable_progress()->mutable_outcome();
  outcome->set_generation(3);
  outcome->mutable_commit()->set_step(step);
  outcome->mutable_commit()->set_optimizer_step(step);
  outcome->mutable_commit()->set_grad_norm(norm);
  return join;
}

v1::Join Aborted(int64_t step, int64_t next) {
  v1::Join join = At(step - 1, step - 1, next);
  v1::Outcome* const outcome = join.mutable_progress()->mutable_outcome();
  outcome->set_generation(next - 1);
  outcome->mutable_abort()->set_step(step);
  outcome->mutable_abort()->set_next_generation(next);
  return join;
}

// "3/8 open, all carry out 7" or the error.
std::string What(const std::vector<v1::Join>& joins) {
  std::vector<const v1::Join*> pointers;
  for (const v1::Join& join : joins) pointers.push_back(&join);
  const auto result = DecideRejoin(pointers);
  if (!result.ok()) {
    EXPECT_TRUE(absl::IsDataLoss(result.status()));
    return std::string(result.status().message());
  }
  std::string text = absl::StrCat(result->generation.value(), "/",
                                  result->open_step.value(), " open");
  if (result->commit.has_value()) {
    absl::StrAppend(&text, ", all carry out ", result->commit->step());
  }
  if (result->abort.has_value()) absl::StrAppend(&text, ", aborted before");
  return text;
}

TEST(RejoinTest, OneNodeGoesOnWhereItWas) {
  EXPECT_EQ(What({At(0, 0, 1)}), "1/1 open");
  EXPECT_EQ(What({At(40, 40, 1)}), "1/41 open");  // stored, then restarted
  EXPECT_EQ(What({Committed(7, 7, 7)}), "3/8 open");
  EXPECT_EQ(What({Committed(7, 7, 6)}), "3/8 open, all carry out 7");
  EXPECT_EQ(What({Committed(7, 6, 6)}), "3/8 open, all carry out 7");
  EXPECT_EQ(What({Aborted(8, 4)}), "4/8 open, aborted before");
}

// I20: a commit that anyone recorded is one, wherever the others are.
TEST(RejoinTest, TheLastOutcomeOfAnyNodeIsTheJobs) {
  const v1::Join before = Committed(6, 6, 6);
  EXPECT_EQ(What({before, before, before}), "3/7 open");
  const std::vector<v1::Join> places = {before, Committed(7, 6, 6),
                                        Committed(7, 7, 6), Committed(7, 7, 7)};
  for (const v1::Join& one : places) {
    for (const v1::Join& other : places) {
      for (const v1::Join& last : places) {
        const auto is_behind = [](const v1::Join& join) {
          return join.progress().outcome().commit().step() == 6;
        };
        const auto is_done = [](const v1::Join& join) {
          return join.progress().finished_step() == 7;
        };
        const bool are_behind =
            is_behind(one) && is_behind(other) && is_behind(last);
        const bool are_done = is_done(one) && is_done(other) && is_done(last);
        EXPECT_EQ(What({one, other, last}), are_behind ? "3/7 open"
                                            : are_done
                                                ? "3/8 open"
                                                : "3/8 open, all carry out 7");
      }
    }
  }
}

TEST(RejoinTest, AnAbortIsToldToWhoeverDidNotHear) {
  EXPECT_EQ(What({Aborted(7, 4), Committed(6, 6, 6)}),
            "4/7 open, aborted before");
  EXPECT_EQ(What({Aborted(7, 4), Aborted(7, 5)}), "5/7 open, aborted before");
  EXPECT_EQ(What({At(0, 0, 1), Aborted(1, 2)}), "2/1 open, aborted before");
  // An abort, then a commit in its generation.
  v1::Join later = Committed(7, 7, 6);
  later.set_generation(4);
  later.mutable_progress()->mutable_outcome()->set_generation(4);
  EXPECT_EQ(What({Aborted(7, 4), later}), "4/8 open, all carry out 7");
}

// What no order of writes leaves behind names both nodes.
TEST(RejoinTest, ContradictionsAreDataLoss) {
  const v1::Join last = Committed(9, 9, 9);
  for (const v1::Join& other :
       {Committed(7, 7, 7), At(0, 0, 1), Aborted(8, 4), Committed(9, 9, 7),
        Committed(9, 7, 7), Committed(9, 9, 9, 2.0)}) {
    EXPECT_THAT(What({last, other}),
                AllOf(HasSubstr("contradicts itself"), HasSubstr("node 0"),
                      HasSubstr("node 1 holds")));
    EXPECT_THAT(What({other, last}), HasSubstr("contradicts itself"));
  }
  EXPECT_THAT(What({Aborted(8, 4), Committed(7, 7, 6)}),
              HasSubstr("node 1 holds a commit of step 7 in generation 3, the "
                        "state of step 7 and weights of step 6"));
}

TEST(RejoinTest, HostileNumbersAreRefused) {  // I27
  std::vector<v1::Join> bad = {At(-1, -1), At(3, 3, int64_t{1} << 40),
                               Committed(int64_t{1} << 50, 5, 5),
                               Committed(-4, 5, 5), v1::Join()};
  bad.push_back(Committed(7, 7, 7));
  bad.back().set_generation(2);  // not that of its outcome
  bad.push_back(Committed(7, 7, 7));
  bad.back().set_optimizer_step(-1);
  for (const v1::Join& join : bad) {
    EXPECT_THAT(What({join}), HasSubstr("contradicts itself"));
    EXPECT_THAT(What({Committed(7, 7, 7), join}), HasSubstr("node 1"));
  }
}

}  // namespace
}  // namespace ballast::membership
