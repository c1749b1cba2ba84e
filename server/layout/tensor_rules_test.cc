#include "server/layout/tensor_rules.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "server/base/status_matchers.h"

namespace ballast::layout {
namespace {

using base::IsOk;
using base::StatusIs;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

TensorSpec Shaped(std::vector<int64_t> shape) { return {"w", shape}; }

TEST(TensorRulesTest, CountsElements) {  // I4
  const int64_t max = Options().max_elements;
  EXPECT_EQ(NumElements(Shaped({}), max).value(), 1);
  EXPECT_EQ(NumElements(Shaped({7}), max).value(), 7);
  EXPECT_EQ(NumElements(Shaped({2, 3, 5, 7}), max).value(), 210);
  EXPECT_EQ(NumElements(Shaped({5, 0, 3}), max).value(), 0);
  EXPECT_EQ(NumElements(Shaped({kHuge, kHuge, 0}), max).value(), 0);
  EXPECT_EQ(NumElements(Shaped({max}), max).value(), max);
}

TEST(TensorRulesTest, RefusesHostileShapes) {  // I26
  const int64_t max = Options().max_elements;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{kHuge},
        {kHuge, 2},
        {1 << 21, 1 << 21},
        {int64_t{1} << 32, int64_t{1} << 32},
        {max + 1}}) {
    EXPECT_THAT(NumElements(Shaped(shape), max),
                StatusIs(kInvalid, "tensor \"w\" has more than"));
  }
  EXPECT_THAT(NumElements(Shaped({3, -1}), max),
              StatusIs(kInvalid, "tensor \"w\" has dimension -1"));
  EXPECT_THAT(NumElements(Shaped({-1, 0}), max), StatusIs(kInvalid, "-1"));
  EXPECT_THAT(NumElements(Shaped(std::vector<int64_t>(33, 1)), max),
              StatusIs(kInvalid, "33 dimensions"));
}

TEST(TensorRulesTest, RefusesWhatBreaksARuleAndNamesIt) {
  const Options options{.max_tensors = 3, .max_elements = 100};
  const auto check = [&](std::vector<TensorSpec> tensors, int groups = 2) {
    return CheckTensors(tensors, groups, options).status();
  };
  EXPECT_THAT(check({{"a", {50}}, {"b", {50}}}), IsOk());
  EXPECT_THAT(check({}), IsOk());
  EXPECT_THAT(
      check({{"a", {50}}, {"b", {51}}}),
      StatusIs(kInvalid, "with tensor \"b\" the job has more than 100"));
  EXPECT_THAT(check({{"a", {1}}, {"b", {1}}, {"a", {1}}}),
              StatusIs(kInvalid, "tensors 0 and 2 have the same name \"a\""));
  EXPECT_THAT(check({{"a", {1}}, {"b", {1}}, {"c", {1}}, {"d", {1}}}),
              StatusIs(kInvalid, "a job of 4 tensors; at most 3"));
  EXPECT_THAT(check({{"no spaces", {1}}}), StatusIs(kInvalid, "no spaces"));
  EXPECT_THAT(check({{"", {1}}}), StatusIs(kInvalid));
  EXPECT_THAT(check({{"a", {1}, static_cast<kernels::DType>(9)}}),
              StatusIs(kInvalid, "tensor \"a\" has unknown dtype 9"));
  EXPECT_THAT(check({{"a", {1}, kernels::DType::kFloat32, true, 2}}),
              StatusIs(kInvalid, "tensor \"a\" is in param group 2"));
  EXPECT_THAT(check({{"a", {1}, kernels::DType::kFloat32, true, -1}}),
              StatusIs(kInvalid, "param group -1"));
  EXPECT_THAT(check({{"a", {1}}}, 0), StatusIs(kInvalid, "0 param groups"));
  EXPECT_THAT(check({{"a", {1}}}, 257), StatusIs(kInvalid, "257"));
}

TEST(TensorRulesTest, BoundsTheTopology) {
  EXPECT_THAT(CheckTopology({1, 1}), IsOk());
  EXPECT_THAT(CheckTopology({kMaxNodes, kMaxLocalWorldSize}), IsOk());
  EXPECT_THAT(CheckTopology({0, 1}), StatusIs(kInvalid, "0 nodes"));
  EXPECT_THAT(CheckTopology({1, 0}), StatusIs(kInvalid, "0 workers"));
  EXPECT_THAT(CheckTopology({kMaxNodes + 1, 1}), StatusIs(kInvalid));
  EXPECT_THAT(CheckTopology({1, kMaxLocalWorldSize + 1}), StatusIs(kInvalid));
}

}  // namespace
}  // namespace ballast::layout
