#include "server/layout/gather_units.h"

#include <vector>

#include "gtest/gtest.h"
#include "server/layout/layout.h"

namespace ballast::layout {
namespace {

Layout Make(std::vector<TensorSpec> tensors, int num_nodes,
            uint64_t bucket_bytes) {
  return *Layout::Create(std::move(tensors), {num_nodes, 1}, 1,
                         {.bucket_bytes = bucket_bytes});
}

std::vector<TensorSpec> Some() {
  return {{.name = "a", .shape = {5000}},
          {.name = "base", .shape = {9001}, .trainable = false},
          {.name = "b", .shape = {300}, .dtype = kernels::DType::kBFloat16},
          {.name = "none", .shape = {0}},
          {.name = "head", .shape = {3}, .trainable = false},
          {.name = "c", .shape = {4096}}};
}

// I14: every byte of every tensor is in exactly one part of one unit, that of
// UnitsOf; payloads add up to the model.
TEST(GatherUnitsTest, PartsTileTheTensors) {
  for (const int num_nodes : {1, 2, 3, 7, 40}) {
    for (const uint64_t bucket_bytes : {1u, 9000u, 1u << 20}) {
      const Layout layout = Make(Some(), num_nodes, bucket_bytes);
      const GatherUnits units(layout);
      std::vector<int> covered(layout.weights_bytes());
      uint64_t payload = 0;
      uint64_t owned = 0;
      for (const GatherUnit& unit : units.units()) {
        ASSERT_EQ(unit.parts.size(), num_nodes);
        for (int n = 0; n < num_nodes; ++n) {
          payload += unit.payload(n);
          EXPECT_LE(unit.payload(n), unit.parts[n].size());
          for (uint64_t i = unit.parts[n].begin; i < unit.parts[n].end; ++i) {
            ++covered[i];
            EXPECT_TRUE(i >= unit.bytes.begin && i < unit.bytes.end);
          }
        }
      }
      for (int n = 0; n < num_nodes; ++n) owned += units.owned_bytes(n);
      EXPECT_GE(owned, payload);
      uint64_t model = 0;
      for (size_t t = 0; t < layout.tensors().size(); ++t) {
        const TensorId id(static_cast<int32_t>(t));
        const uint64_t begin = layout.place(id).weight_offset;
        const uint64_t size = layout.place(id).num_elements *
                              kernels::SizeOf(layout.tensor(id).dtype);
        model += size;
        const UnitRange range = units.UnitsOf(id);
        if (size == 0) {
          EXPECT_EQ(range, UnitRange());
          continue;
        }
        EXPECT_EQ(units.is_frozen(range.first), !layout.tensor(id).trainable);
        EXPECT_LE(units.unit(range.first).bytes.begin, begin);
        EXPECT_GE(units.unit(range.last).bytes.end, begin + size);
        for (uint64_t i = begin; i < begin + size; ++i) {
          ASSERT_EQ(covered[i], 1) << "byte " << i << " of tensor " << t;
        }
      }
      EXPECT_EQ(payload, model);
    }
  }
}

TEST(GatherUnitsTest, UnitsOfBucketsComeFirst) {
  const Layout layout = Make(Some(), 2, 9000);
  const GatherUnits units(layout);
  const int num_buckets = static_cast<int>(layout.buckets().size());
  ASSERT_GT(units.size(), num_buckets);
  for (int u = 0; u < units.size(); ++u) {
    EXPECT_EQ(units.is_frozen(u), u >= num_buckets);
  }
  EXPECT_EQ(units.UnitsOf(TensorId(0)).first, 0);
  EXPECT_EQ(units.UnitsOf(TensorId(5)).last, num_buckets - 1);
}

TEST(GatherUnitsTest, NoTensorHasElements) {
  const Layout layout = Make({{.name = "none", .shape = {0}}}, 2, 1 << 20);
  EXPECT_EQ(GatherUnits(layout).size(), 0);
}

}  // namespace
}  // namespace ballast::layout
