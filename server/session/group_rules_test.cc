#include "server/session/group_rules.h"

#include <cmath>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::session {
namespace {

using base::IsOk;
using base::StatusIs;
using kernels::OptimizerKind;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

proto::GroupValues Adam() {
  proto::GroupValues group{};
  group.lr = 1e-3;
  group.beta1 = 0.9;
  group.beta2 = 0.999;
  group.eps = 1e-8;
  group.weight_decay = 0.1;
  return group;
}

proto::GroupValues Sgd(double momentum, double nesterov) {
  proto::GroupValues group{};
  group.lr = 0.1;
  group.momentum = momentum;
  group.nesterov = nesterov;
  return group;
}

TEST(GroupRulesTest, TakesWhatPyTorchTakes) {
  const proto::GroupValues groups[] = {Adam(), {}};
  EXPECT_THAT(CheckGroups(OptimizerKind::kAdamW, false, groups), IsOk());
  const proto::GroupValues sgd[] = {Sgd(0.9, 1)};
  EXPECT_THAT(CheckGroups(OptimizerKind::kSgd, true, sgd), IsOk());
}

TEST(GroupRulesTest, EachOptimizerHasItsOwnFields) {
  proto::GroupValues group{};
  group.eps = -1;  // not lion's
  EXPECT_THAT(CheckGroups(OptimizerKind::kLion, false, {{group}}), IsOk());
  EXPECT_THAT(CheckGroups(OptimizerKind::kAdagrad, false, {{group}}),
              StatusIs(kInvalid, "eps is -1"));
  group = {};
  group.beta2 = 1;  // not adagrad's
  EXPECT_THAT(CheckGroups(OptimizerKind::kAdagrad, false, {{group}}), IsOk());
  EXPECT_THAT(CheckGroups(OptimizerKind::kLion, false, {{group}}),
              StatusIs(kInvalid, "beta2 is 1"));
  for (double proto::GroupValues::*field :
       {&proto::GroupValues::lr_decay,
        &proto::GroupValues::initial_accumulator_value}) {
    group = {};
    group.*field = -0.5;
    EXPECT_THAT(CheckGroups(OptimizerKind::kAdagrad, false, {{group}}),
                StatusIs(kInvalid, "is -0.5"));
  }
}

TEST(GroupRulesTest, OneNormForAllGroups) {
  proto::GroupValues groups[] = {Adam(), Adam()};
  groups[0].max_norm = groups[1].max_norm = 0.5;
  EXPECT_THAT(CheckGroups(OptimizerKind::kAdam, false, groups), IsOk());
  groups[1].max_norm = 0;
  EXPECT_THAT(CheckGroups(OptimizerKind::kAdam, false, groups),
              StatusIs(kInvalid,
                       "param group 1: max_norm is 0, but group 0 "
                       "has 0.5"));
  groups[0].max_norm = groups[1].max_norm = -1;
  EXPECT_THAT(CheckGroups(OptimizerKind::kAdam, false, groups),
              StatusIs(kInvalid, "param group 0: max_norm is -1"));
}

TEST(GroupRulesTest, AllGroupsLoadOrNone) {
  proto::GroupValues groups[] = {Adam(), Adam()};
  for (const double load : {1, 2}) {
    groups[0].load = groups[1].load = load;
    EXPECT_THAT(CheckGroups(OptimizerKind::kAdam, false, groups), IsOk());
  }
  groups[1].load = 0;
  EXPECT_THAT(
      CheckGroups(OptimizerKind::kAdam, false, groups),
      StatusIs(kInvalid, "param group 1: load is 0, but group 0 has 2"));
  for (const double bad : {-1.0, 0.5, 3.0, std::nan("")}) {  // I26
    groups[0].load = groups[1].load = bad;
    EXPECT_THAT(CheckGroups(OptimizerKind::kAdam, false, groups),
                StatusIs(kInvalid, "must be 0, 1 or 2"));
  }
}

TEST(GroupRulesTest, NamesGroupFieldAndValue) {
  proto::GroupValues groups[] = {Adam(), Adam()};
  groups[1].lr = -0.5;
  EXPECT_THAT(CheckGroups(OptimizerKind::kAdam, false, groups),
              StatusIs(kInvalid, "param group 1: lr is -0.5"));
}

TEST(GroupRulesTest, RefusesWhatIsNotFinite) {  // I26
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    for (double proto::GroupValues::*field :
         {&proto::GroupValues::lr, &proto::GroupValues::beta1,
          &proto::GroupValues::beta2, &proto::GroupValues::eps,
          &proto::GroupValues::weight_decay, &proto::GroupValues::max_norm}) {
      proto::GroupValues groups[] = {Adam()};
      groups[0].*field = bad;
      EXPECT_THAT(CheckGroups(OptimizerKind::kAdam, false, groups),
                  StatusIs(kInvalid));
    }
  }
}

TEST(GroupRulesTest, LooksOnlyAtTheOptimizersOwnFields) {
  proto::GroupValues groups[] = {Adam()};
  groups[0].momentum = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(CheckGroups(OptimizerKind::kAdam, false, groups), IsOk());
}

TEST(GroupRulesTest, RefusesMomentumWithoutBuffers) {
  const proto::GroupValues groups[] = {Sgd(0.9, 0)};
  EXPECT_THAT(CheckGroups(OptimizerKind::kSgd, false, groups),
              StatusIs(kInvalid, "no momentum buffers"));
}

TEST(GroupRulesTest, RefusesNesterovWithoutMomentum) {
  const proto::GroupValues groups[] = {Sgd(0, 1)};
  EXPECT_THAT(CheckGroups(OptimizerKind::kSgd, true, groups),
              StatusIs(kInvalid, "nesterov"));
}

TEST(GroupRulesTest, ValuesRoundTrip) {
  const kernels::HyperParameters group{.lr = 1,
                                       .beta1 = 2,
                                       .beta2 = 3,
                                       .eps = 4,
                                       .weight_decay = 5,
                                       .momentum = 6,
                                       .dampening = 7,
                                       .nesterov = true,
                                       .lr_decay = 8,
                                       .initial_accumulator_value = 9};
  EXPECT_EQ(FromValues(ToValues(group)), group);
}

}  // namespace
}  // namespace ballast::session
