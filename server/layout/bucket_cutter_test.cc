#include "server/layout/bucket_cutter.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "server/base/random.h"
#include "server/base/status_matchers.h"

namespace ballast::layout {
namespace {

using base::IsOk;
using base::StatusIs;

std::vector<CutTensor> Tensors(std::vector<int64_t> sizes) {
  std::vector<CutTensor> tensors;
  for (const int64_t size : sizes) {
    tensors.push_back({TensorId(static_cast<int32_t>(tensors.size())), size});
  }
  return tensors;
}

Piece MakePiece(int32_t tensor, int64_t begin, int64_t end, int64_t bucket,
                int64_t state) {
  return {TensorId(tensor), begin, end, bucket, state};
}

// The picture of layout.h, on two nodes, in buckets of 5,400 elements.
TEST(BucketCutterTest, CutsThePictureOfTheHeader) {
  const Options options{.bucket_bytes = 5400 * 4, .chunk_bytes = 2048 * 4};
  const absl::StatusOr<Cuts> cuts = Cut(Tensors({5000, 300, 4096}), 2, options);
  ASSERT_THAT(cuts, IsOk());
  ASSERT_EQ(cuts->buckets.size(), 2u);

  const Bucket& first = cuts->buckets[0];  // cells c0 c1 | c2 c3
  EXPECT_EQ(first.num_elements, 5300);
  EXPECT_EQ(first.scratch_elements, 5008 + 304);
  EXPECT_EQ(first.tensors, (std::vector<TensorId>{TensorId(0), TensorId(1)}));
  EXPECT_EQ(first.shards[0].pieces,
            (std::vector<Piece>{MakePiece(0, 0, 4096, 0, 0)}));
  EXPECT_EQ(first.shards[1].pieces,
            (std::vector<Piece>{MakePiece(0, 4096, 5000, 4096, 0),
                                MakePiece(1, 0, 300, 5008, 912)}));
  EXPECT_EQ(first.shards[0].bucket_end, 4096);
  EXPECT_EQ(first.shards[1].bucket_begin, 4096);
  EXPECT_EQ(first.shards[1].bucket_end, 5312);
  EXPECT_EQ(first.shards[0].chunks.size(), 2u);
  EXPECT_EQ(first.shards[1].chunks.size(), 1u);  // 912 + 304 fit into one

  const Bucket& second = cuts->buckets[1];
  EXPECT_EQ(second.shards[0].pieces,
            (std::vector<Piece>{MakePiece(2, 0, 2048, 0, 4096)}));
  EXPECT_EQ(second.shards[1].pieces,
            (std::vector<Piece>{MakePiece(2, 2048, 4096, 2048, 1216)}));
  EXPECT_EQ(cuts->state_elements, (std::vector<int64_t>{6144, 3264}));
}

TEST(BucketCutterTest, MoreNodesThanCellsLeaveEmptyShards) {
  const absl::StatusOr<Cuts> cuts = Cut(Tensors({3}), 3, Options());
  ASSERT_THAT(cuts, IsOk());
  const std::vector<Shard>& shards = cuts->buckets[0].shards;
  ASSERT_EQ(shards.size(), 3u);
  EXPECT_TRUE(shards[0].pieces.empty());
  EXPECT_TRUE(shards[0].chunks.empty());
  EXPECT_TRUE(shards[1].pieces.empty());
  EXPECT_EQ(shards[2].num_elements, 3);
  EXPECT_EQ(cuts->state_elements, (std::vector<int64_t>{0, 0, 16}));
}

TEST(BucketCutterTest, NothingToCutGivesNoBucket) {
  const absl::StatusOr<Cuts> cuts = Cut({}, 4, Options());
  ASSERT_THAT(cuts, IsOk());
  EXPECT_TRUE(cuts->buckets.empty());
  EXPECT_EQ(cuts->state_elements, std::vector<int64_t>(4, 0));
}

TEST(BucketCutterTest, ALimitBelowACellStillHoldsOneCell) {
  const Options options{.bucket_bytes = 0, .chunk_bytes = 0};
  const absl::StatusOr<Cuts> cuts = Cut(Tensors({2048 * 3, 1}), 1, options);
  ASSERT_THAT(cuts, IsOk());
  EXPECT_EQ(cuts->buckets.size(), 4u);
}

TEST(BucketCutterTest, RefusesMoreBucketsThanTheBoundBeforeMakingThem) {
  Options options{.bucket_bytes = 0};
  EXPECT_THAT(Cut(Tensors({int64_t{1} << 40}), 1, options),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "more than 65536 buckets"));
  EXPECT_THAT(
      Cut(Tensors({int64_t{1} << 40}), kMaxNodes, options),
      StatusIs(absl::StatusCode::kResourceExhausted, "more than 1024 buckets"));
  options = {.bucket_bytes = ~uint64_t{0}, .chunk_bytes = 0};
  EXPECT_THAT(
      Cut(Tensors({int64_t{1} << 40}), 1, options),
      StatusIs(absl::StatusCode::kResourceExhausted, "raise chunk_bytes"));
}

// Cell by cell, without arithmetic: what the cutter must equal.
struct CellOwner {
  int32_t bucket;
  int32_t node;
  bool operator==(const CellOwner&) const = default;
};

std::vector<CellOwner> CutCellByCell(const std::vector<int64_t>& sizes,
                                     int num_nodes, int64_t limit) {
  std::vector<std::vector<int64_t>> buckets(1);  // padded size of each cell
  int64_t used = 0;
  for (const int64_t size : sizes) {
    for (int64_t begin = 0; begin < size; begin += kCellElements) {
      const int64_t cell = PadElements(std::min(kCellElements, size - begin));
      if (used > 0 && used + cell > limit) {
        buckets.emplace_back();
        used = 0;
      }
      buckets.back().push_back(cell);
      used += cell;
    }
  }
  std::vector<CellOwner> owners;
  for (size_t b = 0; b < buckets.size(); ++b) {
    const int64_t count = buckets[b].size();
    for (int64_t c = 0; c < count; ++c) {
      int32_t node = 0;
      while (c >= count * (node + 1) / num_nodes) ++node;
      owners.push_back({static_cast<int32_t>(b), node});
    }
  }
  return owners;
}

TEST(BucketCutterTest, EqualsCuttingCellByCell) {  // I14
  base::SeededRandom random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> sizes(1 + random.Below(12));
    for (int64_t& size : sizes) {
      size = 1 + random.Below(random.Below(2) != 0 ? 60 : 9000);
    }
    const int num_nodes = 1 + random.Below(9);
    const int64_t limit = 2048 + random.Below(3) * random.Below(20000);
    const Options options{.bucket_bytes = static_cast<uint64_t>(limit) * 4,
                          .chunk_bytes = random.Below(40000)};
    const absl::StatusOr<Cuts> cuts = Cut(Tensors(sizes), num_nodes, options);
    ASSERT_THAT(cuts, IsOk());
    std::vector<CellOwner> owners;
    for (const Bucket& bucket : cuts->buckets) {
      for (const Shard& shard : bucket.shards) {
        for (const Piece& piece : shard.pieces) {
          owners.insert(owners.end(), NumCells(piece.size()),
                        {bucket.id.value(), shard.owner.value()});
        }
      }
    }
    ASSERT_EQ(owners, CutCellByCell(sizes, num_nodes, limit));
  }
}

}  // namespace
}  // namespace ballast::layout
