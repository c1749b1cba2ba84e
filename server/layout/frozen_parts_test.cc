#include "server/layout/frozen_parts.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/layout/gather_units.h"

namespace ballast::layout {
namespace {

Layout Make(Topology topology, uint64_t bucket_bytes) {
  return *Layout::Create(
      {{.name = "a", .shape = {5000}},
       {.name = "base", .shape = {9001}, .trainable = false},
       {.name = "none", .shape = {0}, .trainable = false},
       {.name = "b", .shape = {300}, .dtype = kernels::DType::kBFloat16},
       {.name = "head",
        .shape = {7003},
        .dtype = kernels::DType::kFloat16,
        .trainable = false},
       {.name = "one", .shape = {}, .trainable = false}},
      topology, 1, {.bucket_bytes = bucket_bytes});
}

// I14: each element once; where weights are gathered, of what the node has.
TEST(FrozenPartsTest, NodesStoreEachElementOnce) {
  for (const auto& [nodes, owners] : std::vector<std::pair<int, int>>{
           {1, 0}, {2, 0}, {3, 0}, {7, 0}, {40, 0}, {4, 2}, {3, 1}, {6, 3}}) {
    for (const uint64_t bucket_bytes : {1u, 9000u, 1u << 20}) {
      const Layout layout = Make({nodes, 1, owners}, bucket_bytes);
      const GatherUnits units(layout);
      for (const bool are_gathered : {false, true}) {
        std::vector<std::vector<int>> seen;
        for (const TensorPlace& place : layout.places()) {
          seen.emplace_back(place.num_elements);
        }
        for (int n = 0; n < nodes; ++n) {
          for (const FrozenPart& part :
               StoredFrozenParts(layout, NodeRank(n), are_gathered)) {
            const uint64_t size =
                kernels::SizeOf(layout.tensor(part.tensor).dtype);
            EXPECT_LT(part.begin, part.end);
            EXPECT_EQ(
                part.weight_offset,
                layout.place(part.tensor).weight_offset + part.begin * size);
            EXPECT_EQ(part.size_bytes, (part.end - part.begin) * size);
            for (int64_t i = part.begin; i < part.end; ++i) {
              ++seen[part.tensor.value()][i];
            }
            if (!are_gathered) continue;
            bool is_here = false;
            for (const GatherUnit& unit : units.units()) {
              const ByteRange& own =
                  unit.parts[layout.topology().OwnerOf(NodeRank(n)).value()];
              is_here |= own.begin <= part.weight_offset &&
                         part.weight_offset + part.size_bytes <= own.end;
            }
            EXPECT_TRUE(is_here) << part.tensor.value() << " " << part.begin;
          }
        }
        for (size_t t = 0; t < seen.size(); ++t) {
          const int times = layout.tensors()[t].trainable ? 0 : 1;
          EXPECT_THAT(seen[t], testing::Each(times)) << t;
        }
      }
    }
  }
}

TEST(FrozenPartsTest, GatheredOnesAreSpreadOverTheNodes) {
  const Layout layout = Make({3, 1}, 9000);
  for (int n = 0; n < 3; ++n) {
    uint64_t bytes = 0;
    for (const auto& part : StoredFrozenParts(layout, NodeRank(n), true)) {
      bytes += part.size_bytes;
    }
    // A third of 50 KB; tensor t mod 3 would be all of it on two nodes.
    EXPECT_GT(bytes, 15'000) << n;
    EXPECT_LT(bytes, 18'500) << n;
  }
}

}  // namespace
}  // namespace ballast::layout
