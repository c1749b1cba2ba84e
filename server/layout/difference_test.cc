#include "server/layout/difference.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/dtype.h"

namespace ballast::layout {
namespace {

using kernels::DType;

std::vector<TensorSpec> Base() {
  return {{"wte", {8, 4}, DType::kFloat32, true, 0},
          {"bias", {4}, DType::kFloat32, true, 1}};
}

TEST(DifferenceTest, EqualListsDoNotDiffer) {
  EXPECT_EQ(Difference(Base(), Base()), "");
}

TEST(DifferenceTest, SaysWhichTensorAndHow) {
  std::vector<TensorSpec> there = Base();
  there[0].dtype = DType::kBFloat16;
  EXPECT_EQ(Difference(Base(), there),
            "tensor 0 \"wte\": dtype float32 here, bfloat16 there");
  there = Base();
  there[1].shape = {2, 2};
  EXPECT_EQ(Difference(Base(), there),
            "tensor 1 \"bias\": shape [4] here, [2, 2] there");
  there = Base();
  there[1].trainable = false;
  EXPECT_EQ(Difference(Base(), there),
            "tensor 1 \"bias\": trainable here, frozen there");
  there = Base();
  there[1].group = 0;
  EXPECT_EQ(Difference(Base(), there),
            "tensor 1 \"bias\": param group 1 here, 0 there");
  there = Base();
  there[1].name = "biaz";
  EXPECT_EQ(Difference(Base(), there),
            "tensor 1: \"bias\" here, \"biaz\" there");
}

TEST(DifferenceTest, SaysWhatIsMissing) {
  std::vector<TensorSpec> there = Base();
  there.pop_back();
  EXPECT_EQ(Difference(Base(), there),
            "2 tensors here, 1 there: tensor 1 \"bias\" is missing there");
  EXPECT_EQ(Difference(there, Base()),
            "1 tensors here, 2 there: tensor 1 \"bias\" is missing here");
}

}  // namespace
}  // namespace ballast::layout
