#include "server/layout/layout.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "server/base/ids.h"
#include "server/base/random.h"
#include "server/base/status_matchers.h"

namespace ballast::layout {
namespace {

using base::IsOk;
using base::StatusIs;
using kernels::DType;

// Sizes and dimensions at which cuts have gone wrong elsewhere.
std::vector<TensorSpec> AwkwardTensors() {
  return {{"scalar", {}, DType::kFloat32},
          {"empty", {0}, DType::kBFloat16},
          {"seven", {7}, DType::kFloat16},
          {"below", {2047}, DType::kBFloat16},
          {"cell", {2048}, DType::kFloat32},
          {"frozen", {3, 5}, DType::kBFloat16, false},
          {"above", {2049}, DType::kFloat16, true, 1},
          {"large", {100003}, DType::kFloat32},
          {"cube", {11, 13, 17}, DType::kBFloat16},
          {"four", {2, 3, 0, 5}, DType::kFloat32},
          {"hyper", {3, 5, 7, 11}, DType::kFloat16}};
}

absl::StatusOr<Layout> Make(std::vector<TensorSpec> tensors, int nodes,
                            int workers = 1, Options options = {}) {
  return Layout::Create(std::move(tensors), {nodes, workers}, 2, options);
}

// All properties of a layout that hold for any input: I4, I7, I14.
void ExpectSound(const Layout& layout) {
  const int num_nodes = layout.topology().num_nodes;
  std::vector<int64_t> next(layout.tensors().size(), 0);  // of each tensor
  std::vector<int64_t> state_end(num_nodes, 0);
  const int64_t bucket_limit = std::max<int64_t>(
      kCellElements, layout.options().bucket_bytes / sizeof(float));
  const int64_t chunk_limit = std::max<int64_t>(
      kCellElements, layout.options().chunk_bytes / sizeof(float));
  TensorId last_tensor(0);
  for (const Bucket& bucket : layout.buckets()) {
    ASSERT_EQ(static_cast<int>(bucket.shards.size()), num_nodes);
    EXPECT_LE(bucket.scratch_elements, bucket_limit);
    EXPECT_GT(bucket.num_elements, 0);
    int64_t scratch = 0;
    int64_t elements = 0;
    for (int r = 0; r < num_nodes; ++r) {
      const Shard& shard = bucket.shards[r];
      EXPECT_EQ(shard.owner, NodeRank(r));
      EXPECT_EQ(shard.bucket_begin, scratch);
      const int64_t to_state = state_end[r] - scratch;
      int64_t shard_elements = 0;
      for (const Piece& piece : shard.pieces) {
        ASSERT_LE(last_tensor, piece.tensor);  // layout order
        last_tensor = piece.tensor;
        ASSERT_TRUE(layout.tensor(piece.tensor).trainable);
        // Each element once, in order; cuts on cells.
        ASSERT_EQ(piece.begin, next[piece.tensor.value()]);
        ASSERT_LT(piece.begin, piece.end);
        ASSERT_EQ(piece.begin % kCellElements, 0);
        const TensorPlace& place = layout.place(piece.tensor);
        ASSERT_TRUE(piece.end % kCellElements == 0 ||
                    piece.end == place.num_elements);
        next[piece.tensor.value()] = piece.end;
        ASSERT_LE(place.first_bucket, bucket.id.value());
        ASSERT_GE(place.last_bucket, bucket.id.value());
        // Dense, padded to kAlignElements.
        ASSERT_EQ(piece.bucket_offset, scratch);
        ASSERT_EQ(piece.state_offset, scratch + to_state);
        const int64_t padded = (piece.size() + kAlignElements - 1) /
                               kAlignElements * kAlignElements;
        scratch += padded;
        state_end[r] += padded;
        shard_elements += piece.size();
      }
      EXPECT_EQ(shard.bucket_end, scratch);
      EXPECT_EQ(shard.num_elements, shard_elements);
      elements += shard_elements;
      // Chunks tile the shard.
      int64_t chunk_elements = 0;
      int64_t state = shard.bucket_begin + to_state;
      for (const Chunk& chunk : shard.chunks) {
        EXPECT_EQ(chunk.state_begin, state);
        EXPECT_LE(chunk.state_end - chunk.state_begin, chunk_limit);
        for (const Piece& piece : chunk.pieces) {
          ASSERT_EQ(piece.state_offset, state);
          ASSERT_EQ(piece.begin % kCellElements, 0);
          state += (piece.size() + kAlignElements - 1) / kAlignElements *
                   kAlignElements;
          chunk_elements += piece.size();
        }
        EXPECT_EQ(chunk.state_end, state);
      }
      EXPECT_EQ(chunk_elements, shard_elements);
    }
    EXPECT_EQ(bucket.scratch_elements, scratch);
    EXPECT_EQ(bucket.num_elements, elements);
  }
  for (size_t i = 0; i < next.size(); ++i) {
    const TensorPlace& place = layout.places()[i];
    const bool is_cut = layout.tensors()[i].trainable && place.num_elements > 0;
    ASSERT_EQ(next[i], is_cut ? place.num_elements : 0);
    ASSERT_EQ(place.first_bucket >= 0, is_cut);
    ASSERT_EQ(place.last_bucket >= 0, is_cut);
  }
  for (int r = 0; r < num_nodes; ++r) {
    EXPECT_EQ(layout.state_elements(NodeRank(r)), state_end[r]);
  }
}

TEST(LayoutTest, IsSoundForAllTopologiesAndBucketSizes) {  // I4, I7, I14
  for (int nodes = 1; nodes <= 8; ++nodes) {
    for (int workers = 1; workers <= 8; ++workers) {
      for (const uint64_t bucket_bytes : {0, 8192, 8193, 30000, 1 << 22}) {
        for (const uint64_t chunk_bytes : {1, 20000, 1 << 18}) {
          const absl::StatusOr<Layout> layout =
              Make(AwkwardTensors(), nodes, workers,
                   {.bucket_bytes = bucket_bytes, .chunk_bytes = chunk_bytes});
          ASSERT_THAT(layout, IsOk());
          ExpectSound(*layout);
          if (HasFailure()) FAIL() << nodes << "x" << workers;
        }
      }
    }
  }
}

TEST(LayoutTest, IsSoundForRandomModels) {  // I4, I14
  base::SeededRandom random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<TensorSpec> tensors(random.Below(20));
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].name = absl::StrCat("t", i);
      tensors[i].shape.resize(random.Below(5));
      for (int64_t& extent : tensors[i].shape) extent = random.Below(13);
      tensors[i].dtype = static_cast<DType>(1 + random.Below(3));
      tensors[i].trainable = random.Below(5) != 0;
    }
    const absl::StatusOr<Layout> layout =
        Make(tensors, 1 + random.Below(8), 1 + random.Below(8),
             {.bucket_bytes = random.Below(100000),
              .chunk_bytes = random.Below(100000)});
    ASSERT_THAT(layout, IsOk());
    ExpectSound(*layout);
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

TEST(LayoutTest, PlacesTrainableTensorsFirstAligned) {
  const absl::StatusOr<Layout> layout =
      Make({{"frozen", {3}, DType::kFloat32, false},
            {"a", {5}, DType::kBFloat16},
            {"empty", {0}, DType::kFloat32},
            {"b", {33}, DType::kFloat16},
            {"c", {}, DType::kFloat32}},
           1);
  ASSERT_THAT(layout, IsOk());
  const std::span<const TensorPlace> places = layout->places();
  EXPECT_EQ(places[0], (TensorPlace{3, 256, 0, -1, -1}));
  EXPECT_EQ(places[1], (TensorPlace{5, 0, 0, 0, 0}));
  EXPECT_EQ(places[2], (TensorPlace{0, 64, 64, -1, -1}));
  EXPECT_EQ(places[3], (TensorPlace{33, 64, 64, 0, 0}));
  EXPECT_EQ(places[4], (TensorPlace{1, 192, 192, 0, 0}));
  EXPECT_EQ(layout->weights_bytes(), 320u);
  EXPECT_EQ(layout->gradients_bytes(), 256u);
  EXPECT_EQ(layout->trainable_elements(), 39);
  EXPECT_EQ(layout->total_elements(), 42);
}

// A shard is one byte range of the segments: what transfers rely on.
TEST(LayoutTest, ShardsAreContiguousInTheSegments) {  // I7
  const absl::StatusOr<Layout> layout =
      Make(AwkwardTensors(), 3, 2, {.bucket_bytes = 50000});
  ASSERT_THAT(layout, IsOk());
  uint64_t end = 0;
  for (const Bucket& bucket : layout->buckets()) {
    for (const Shard& shard : bucket.shards) {
      for (const Piece& piece : shard.pieces) {
        const int size = SizeOf(layout->tensor(piece.tensor).dtype);
        const TensorPlace& place = layout->place(piece.tensor);
        const uint64_t begin = place.weight_offset + piece.begin * size;
        EXPECT_EQ(begin % kAlignment, 0u);
        EXPECT_GE(begin, end);
        EXPECT_LT(begin - end, kAlignment);
        end = begin + piece.size() * size;
        EXPECT_EQ(place.weight_offset, place.gradient_offset);
      }
    }
  }
}

TEST(LayoutTest, CellsDoNotDependOnBucketSize) {  // I9
  const absl::StatusOr<Layout> whole =
      Make(AwkwardTensors(), 2, 2, {.bucket_bytes = uint64_t{1} << 40});
  const absl::StatusOr<Layout> small =
      Make(AwkwardTensors(), 2, 2, {.bucket_bytes = 1});
  ASSERT_THAT(whole, IsOk());
  ASSERT_THAT(small, IsOk());
  EXPECT_EQ(whole->buckets().size(), 1u);
  EXPECT_GT(small->buckets().size(), 50u);
  for (size_t i = 0; i < whole->places().size(); ++i) {
    EXPECT_EQ(whole->places()[i].weight_offset,
              small->places()[i].weight_offset);
  }
  EXPECT_EQ(whole->model_digest(), small->model_digest());
  EXPECT_NE(whole->digest(), small->digest());
}

TEST(LayoutTest, DigestsSeeEveryField) {
  const std::string digest = Make(AwkwardTensors(), 2, 2)->digest();
  const std::string model = Make(AwkwardTensors(), 2, 2)->model_digest();
  EXPECT_EQ(Make(AwkwardTensors(), 2, 2)->digest(), digest);
  EXPECT_EQ(Make(AwkwardTensors(), 4, 1)->model_digest(), model);
  EXPECT_NE(Make(AwkwardTensors(), 4, 1)->digest(), digest);
  EXPECT_NE(Make(AwkwardTensors(), 2, 4)->digest(), digest);
  EXPECT_NE(Make(AwkwardTensors(), 2, 2, {.chunk_bytes = 9000})->digest(),
            digest);
  const auto differs = [&](auto change) {
    std::vector<TensorSpec> tensors = AwkwardTensors();
    change(&tensors);
    const absl::StatusOr<Layout> layout = Make(tensors, 2, 2);
    ASSERT_THAT(layout, IsOk());
    EXPECT_NE(layout->digest(), digest);
    EXPECT_NE(layout->model_digest(), model);
  };
  using Specs = std::vector<TensorSpec>;
  differs([](Specs* t) { (*t)[2].name = "eight"; });
  differs([](Specs* t) { (*t)[2].group = 1; });
  differs([](Specs* t) { (*t)[2].dtype = DType::kBFloat16; });
  differs([](Specs* t) { (*t)[2].trainable = false; });
  differs([](Specs* t) { (*t)[8].shape = {13, 11, 17}; });
  differs([](Specs* t) { (*t)[1].shape = {0, 0}; });
  differs([](Specs* t) { t->pop_back(); });
}

TEST(LayoutTest, EveryPartitionGroupKeepsAllShards) {  // I14
  const Layout layout =
      *Layout::Create(AwkwardTensors(), {6, 2, 2}, 2, {.bucket_bytes = 9000});
  const Layout two =
      *Layout::Create(AwkwardTensors(), {2, 2}, 2, {.bucket_bytes = 9000});
  EXPECT_EQ(std::vector(layout.buckets().begin(), layout.buckets().end()),
            std::vector(two.buckets().begin(), two.buckets().end()));
  EXPECT_NE(layout.digest(), two.digest());
  EXPECT_EQ(layout.model_digest(), two.model_digest());
  for (int node = 0; node < 6; ++node) {
    EXPECT_EQ(layout.state_elements(NodeRank(node)),
              two.state_elements(NodeRank(node % 2)));
    EXPECT_EQ(layout.topology().OwnerOf(NodeRank(node)), NodeRank(node % 2));
    EXPECT_EQ(layout.topology().GroupOf(NodeRank(node)), node / 2);
    EXPECT_EQ(layout.topology().NodeAt(node / 2, NodeRank(node % 2)),
              NodeRank(node));
  }
  for (const Bucket& bucket : layout.buckets()) {
    for (const Shard& shard : bucket.shards) {
      int num_stored = 0;
      for (int group = 0; group < 3; ++group) {
        const NodeRank node = layout.topology().NodeAt(group, shard.owner);
        EXPECT_EQ(&layout.shard(bucket.id, node), &shard);
        num_stored += layout.Stores(node, bucket.id) ? 1 : 0;
      }
      EXPECT_EQ(num_stored, 1);
    }
  }
}

TEST(LayoutTest, OnePartitionGroupOfAllNodesIsNone) {
  const std::string digest =
      Layout::Create(AwkwardTensors(), {4, 2}, 2, {})->digest();
  const Layout all = *Layout::Create(AwkwardTensors(), {4, 2, 4}, 2, {});
  EXPECT_EQ(all.digest(), digest);
  EXPECT_EQ(all.topology().partition_nodes, 0);
  std::set<std::string> digests = {digest};
  for (const int owners : {1, 2}) {
    digests.insert(
        Layout::Create(AwkwardTensors(), {4, 2, owners}, 2, {})->digest());
  }
  EXPECT_EQ(digests.size(), 3u);
  EXPECT_THAT(Layout::Create(AwkwardTensors(), {4, 2, 3}, 2, {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "partition groups of 3 nodes do not divide"));
}

TEST(LayoutTest, RefusesAndNamesTheReason) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Make({{"w", {1}}}, 0), StatusIs(kInvalid, "0 nodes"));
  EXPECT_THAT(Make({{"w", {-2}}}, 1), StatusIs(kInvalid, "\"w\""));
  EXPECT_THAT(Make({{"w", {1}}, {"w", {1}}}, 1), StatusIs(kInvalid, "same"));
  EXPECT_THAT(
      Make({{"w", {int64_t{1} << 40}}}, 1, 1, {.bucket_bytes = 4 << 20}),
      StatusIs(absl::StatusCode::kResourceExhausted, "bucket_bytes"));
}

// A plan, whole, as a change detector: a new digest means a new format, and
// that daemons of the two builds cannot work together.
TEST(LayoutTest, GoldenDigest) {
  const absl::StatusOr<Layout> layout =
      Make({{"a", {5000}}, {"b", {300}, DType::kBFloat16}, {"c", {2, 2048}}}, 2,
           2, {.bucket_bytes = 5400 * 4, .chunk_bytes = 8192});
  ASSERT_THAT(layout, IsOk());
  EXPECT_EQ(layout->model_digest(), "96dec0cf239122a8");
  EXPECT_EQ(layout->digest(), "fab7e6b430e46678");
}

}  // namespace
}  // namespace ballast::layout
