#include "server/collective/owned_weights.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference.h"
#include "server/base/sim_compute_pool.h"
#include "server/base/sim_executor.h"
#include "server/device/host/host_device.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/policy.h"

namespace ballast::collective {
namespace {

constexpr int kNodes = 3;

// Each node's parts, encoded from masters that no type holds exactly.
class OwnedWeightsTest : public testing::Test {
 protected:
  struct Node {
    std::vector<float> master;
    std::unique_ptr<OwnedWeights> owned;
  };

  OwnedWeightsTest() {
    for (int n = 0; n < kNodes; ++n) {
      Node& node = nodes_.emplace_back();
      node.master.resize(layout_.state_elements(NodeRank(n)));
      for (size_t i = 0; i < node.master.size(); ++i) {
        node.master[i] = static_cast<float>(i % 977 + 1) / (7.0f + n);
      }
      Parts parts;
      parts.layout = &layout_;
      parts.node = NodeRank(n);
      parts.kernels = &kernels::Reference();
      parts.pool = &pool_;
      parts.device = &device_;
      parts.plan = &plan_;
      parts.master = node.master;
      node.owned = *OwnedWeights::Create(parts, &units_);
    }
  }

  void Encode(Node& node, BucketId bucket) {
    OwnedWeights& owned = *node.owned;
    for (size_t c = 0; c < owned.num_chunks(bucket, owned.self()); ++c) {
      std::vector<ErrorSums> errors(owned.OwnRuns(bucket, c).size());
      owned.EncodeChunk(Step(1), bucket, c, errors);
    }
    owned.SetCoded(bucket);
  }

  base::SimExecutor executor_{1};
  base::SimComputePool pool_{&executor_, 1, 2};
  device::HostDevice device_{{}, &executor_};
  const layout::Layout layout_ = *layout::Layout::Create(
      {{.name = "a", .shape = {20'000}},
       {.name = "b", .shape = {9'001}, .dtype = kernels::DType::kBFloat16},
       {.name = "base", .shape = {5'000}, .trainable = false},
       {.name = "norm", .shape = {300}, .dtype = kernels::DType::kFloat16}},
      {kNodes, 1}, 1, {.bucket_bytes = 40'000, .chunk_bytes = 16'384});
  const layout::GatherUnits units_{layout_};
  layout::ExchangePlan plan_{
      *layout::ParsePolicy(
          "weights.codec=int8 override:norm=none secondary_partition=none"),
      layout_};
  std::vector<Node> nodes_;
};

// I25: what a snapshot stores is what the others read.
TEST_F(OwnedWeightsTest, DecodesItsOwnAsTheOthersDo) {
  for (int n = 0; n < kNodes; ++n) {
    OwnedWeights& owned = *nodes_[n].owned;
    std::vector<std::byte> segment(layout_.weights_bytes());
    int64_t index = 0;
    int pieces = 0;
    for (const layout::Bucket& bucket : layout_.buckets()) {
      EXPECT_FALSE(owned.are_all_coded());
      Encode(nodes_[n], bucket.id);
      const std::span<const std::byte> part = owned.Served(bucket.id.value());
      for (size_t c = 0; c < bucket.shards[n].chunks.size(); ++c, ++index) {
        nodes_[(n + 1) % kNodes].owned->DecodeChunk(
            0, bucket.id, n, c, part.data(), segment.data());
        const auto& chunk = bucket.shards[n].chunks[c];
        for (size_t p = 0; p < chunk.pieces.size(); ++p, ++pieces) {
          const layout::Piece& piece = chunk.pieces[p];
          const int64_t size =
              kernels::SizeOf(layout_.tensor(piece.tensor).dtype);
          std::vector<float> scratch(piece.size());
          std::vector<std::byte> decoded(piece.size() * size);
          owned.DecodeOwn(index, p, scratch, decoded);
          const auto read = segment.begin() +
                            layout_.place(piece.tensor).weight_offset +
                            piece.begin * size;
          EXPECT_EQ(decoded,
                    std::vector<std::byte>(read, read + std::ssize(decoded)));
          EXPECT_THAT(decoded, testing::Contains(testing::Ne(std::byte{0})));
        }
      }
    }
    EXPECT_TRUE(owned.are_all_coded());
    EXPECT_GT(pieces, 3);
  }
}

// The control: of bytes that have changed it decodes others.
TEST_F(OwnedWeightsTest, DecodesWhatIsServed) {
  Node& node = nodes_[1];
  const BucketId bucket(0);
  const layout::Piece& piece =
      layout_.buckets()[0].shards[1].chunks[0].pieces[0];
  ASSERT_EQ(piece.tensor, TensorId(0));
  std::vector<float> scratch(piece.size());
  std::vector<std::byte> before(piece.size() * sizeof(float));
  std::vector<std::byte> after = before;
  Encode(node, bucket);
  node.owned->DecodeOwn(0, 0, scratch, before);
  node.master[piece.state_offset + 5] = 1000;
  node.owned->DecodeOwn(0, 0, scratch, after);
  EXPECT_EQ(after, before);
  Encode(node, bucket);
  node.owned->DecodeOwn(0, 0, scratch, after);
  EXPECT_NE(after, before);
}

}  // namespace
}  // namespace ballast::collective
