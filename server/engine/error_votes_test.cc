#include "server/engine/error_votes.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/exact_sum.h"
#include "server/base/status_matchers.h"

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

v1::Commit CommitOf(int path, int tensor, int from, int to) {
  v1::Commit commit;
  commit.set_step(7);
  v1::CodecChange* const change = commit.add_codec_changes();
  change->set_path(path);
  change->set_tensor(tensor);
  change->set_from(from);
  change->set_to(to);
  return commit;
}

TEST(ErrorVotesTest, ACommitsChangesAreParsed) {
  const auto changes = ParseCodecChanges(CommitOf(1, -5, 2, 1));
  ASSERT_THAT(changes, base::IsOk());
  ASSERT_EQ(changes->size(), 1u);
  EXPECT_EQ(changes->front().path, layout::Path::kWeights);
  EXPECT_EQ(changes->front().codec, layout::CodecId::kInt8);
  EXPECT_EQ(changes->front().tensor, TensorId(-5)) << "the plan's to refuse";
  EXPECT_THAT(ParseCodecChanges(v1::Commit()), base::IsOk());
}

TEST(ErrorVotesTest, WhatIsNoPathOrCodecIsRefused) {  // I27
  for (const int bad : {-1, 2, 256, 1 << 30}) {
    EXPECT_THAT(ParseCodecChanges(CommitOf(bad, 0, 2, 1)),
                base::StatusIs(absl::StatusCode::kDataLoss,
                               "of step 7 changes a codec on path"));
  }
  for (const int bad : {-1, 256, 1 << 30}) {
    EXPECT_THAT(ParseCodecChanges(CommitOf(0, 0, bad, 1)),
                base::StatusIs(absl::StatusCode::kDataLoss));
    EXPECT_THAT(ParseCodecChanges(CommitOf(0, 0, 2, bad)),
                base::StatusIs(absl::StatusCode::kDataLoss));
  }
}

}  // namespace
}  // namespace ballast::engine
