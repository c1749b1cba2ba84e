#include "server/engine/error_votes.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/exact_sum.h"

namespace ballast::engine {
namespace {

kernels::ExactSum Back(const v1::ExactLimbs& limbs) {
  std::vector<uint64_t> all(limbs.first());
  all.insert(all.end(), limbs.limbs().begin(), limbs.limbs().end());
  all.resize(kernels::ExactSum::kLimbs);
  kernels::ExactSum sum;
  EXPECT_TRUE(kernels::ExactSum::FromLimbs(all, &sum));
  return sum;
}

TEST(ErrorVotesTest, SumsArriveWholeAndSmall) {
  for (const double value :
       {0.0, 1.0, 0x1p-1074, 0x1.fffffffffffffp1023, 1e-12, 3.7e9}) {
    collective::PathErrors errors;
    errors.first = 512;
    collective::ErrorSums& sums = errors.tensors.emplace_back();
    sums.error2.Add(value);
    sums.value2.Add(value);
    sums.value2.Add(0x1p-100);
    sums.sampled = 2048;
    sums.clipped = 3;
    const v1::PathErrors proto = ToPathErrors(errors);
    EXPECT_EQ(proto.first(), 512);
    ASSERT_EQ(proto.tensors_size(), 1);
    EXPECT_EQ(Back(proto.tensors(0).error2()), sums.error2);
    EXPECT_EQ(Back(proto.tensors(0).value2()), sums.value2);
    EXPECT_LE(proto.tensors(0).error2().limbs_size(), 2) << value;
    EXPECT_EQ(proto.tensors(0).sampled(), 2048);
    EXPECT_EQ(proto.tensors(0).clipped(), 3);
  }
  EXPECT_EQ(ToPathErrors({}).tensors_size(), 0);
}

TEST(ErrorVotesTest, WhatNoCodecIsStaysNone) {  // I27
  v1::Commit commit;
  for (const int path : {1, -1, 256, 1 << 30}) {
    v1::CodecChange* const change = commit.add_codec_changes();
    change->set_path(path);
    change->set_tensor(-5);
    change->set_to(path);
  }
  const auto changes = ToCodecChanges(commit);
  ASSERT_EQ(changes.size(), 4u);
  EXPECT_EQ(changes[0].path, layout::Path::kWeights);
  EXPECT_EQ(changes[0].codec, layout::CodecId::kInt8);
  EXPECT_EQ(changes[0].tensor, TensorId(-5));
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(static_cast<int>(changes[i].path), 255);
    EXPECT_EQ(static_cast<int>(changes[i].codec), 255);
  }
}

}  // namespace
}  // namespace ballast::engine
