#include "server/optimizer/residuals.h"

#include <algorithm>
#include <cstring>

#include "gtest/gtest.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/device/host/host_device.h"

namespace ballast::optimizer {
namespace {

class ResidualsTest : public ::testing::Test {
 protected:
  const layout::Layout layout_ = *layout::Layout::Create(
      {{.name = "a", .shape = {5000}}, {.name = "b", .shape = {3}}},
      {.num_nodes = 2, .local_world_size = 1}, 1, {.bucket_bytes = 1});
  base::SimExecutor executor_{1};
  device::HostDevice device_{{}, &executor_};
};

TEST_F(ResidualsTest, EveryPieceHasAPlaceInBothVersions) {
  const auto residuals = Residuals::Create(&device_, layout_, NodeRank(1));
  ASSERT_THAT(residuals, base::IsOk());
  Residuals& r = **residuals;
  EXPECT_EQ(r.size_bytes(), Residuals::SizeBytes(layout_));
  EXPECT_EQ(device_.shared_bytes_in_use(), r.size_bytes());
  EXPECT_NE(r.version(0).data(), r.version(1).data());
  for (const layout::Bucket& bucket : layout_.buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      for (const layout::Piece& piece : shard.pieces) {
        for (int v = 0; v < 2; ++v) {
          const auto run = r.version(v).subspan(
              r.OffsetOf(bucket.id) + piece.bucket_offset, piece.size());
          // Zero, and nobody else's.
          EXPECT_TRUE(std::ranges::all_of(run, [](float x) { return x == 0; }));
          std::ranges::fill(run, 1.0f);
        }
      }
    }
  }
}

TEST_F(ResidualsTest, AnAppliedUpdateIsTheOnlyThingThatTurnsTheVersion) {
  EXPECT_EQ(Residuals::VersionAt(0), 0);
  EXPECT_EQ(Residuals::VersionAt(1), 1);
  EXPECT_EQ(Residuals::VersionAt(2), 0);
  EXPECT_EQ(Residuals::VersionAt((int64_t{1} << 40) + 1), 1);
}

TEST_F(ResidualsTest, WithoutRoomThereIsAnError) {
  device::HostDevice small({.limit_bytes = 4096}, &executor_);
  EXPECT_THAT(
      Residuals::Create(&small, layout_, NodeRank(0)).status(),
      base::StatusIs(absl::StatusCode::kResourceExhausted, "residuals"));
}

}  // namespace
}  // namespace ballast::optimizer
