#include "server/snapshot/shard_plan.h"

#include <map>
#include <set>
#include <utility>

#include "gtest/gtest.h"
#include "server/base/sim_executor.h"
#include "server/snapshot/files/section_name.h"
#include "server/snapshot/snapshot_rig.h"

namespace ballast::snapshot {
namespace {

// Every element of every array is in one section of one node, and the copies
// of the chunks tile the image.
TEST(ShardPlanTest, TilesEverything) {  // I14, I4
  base::SimExecutor executor(1);
  const std::pair<int, int> groups[] = {{1, 0}, {2, 0}, {3, 0}, {7, 0},
                                        {4, 2}, {3, 1}, {6, 3}, {6, 2}};
  for (const auto& [nodes, owners] : groups) {
    for (const bool gathers : {false, true}) {
      for (const uint64_t bucket_bytes : {8u << 10, 16u << 10, 1u << 20}) {
        for (const bool has_published : {false, true}) {
          std::map<std::pair<Kind, std::string>, std::set<int64_t>> seen;
          for (int n = 0; n < nodes; ++n) {
            SnapshotRig rig(nodes, 1, n, &executor, bucket_bytes, has_published,
                            owners, gathers);
            const ShardPlan plan(rig.layout(), rig.node(), rig.content());
            uint64_t at = 0;
            for (const Section& section : plan.sections()) {
              EXPECT_EQ(section.begin, at);
              at = section.end;
              const auto name = ParseSectionName(section.name);
              ASSERT_TRUE(name.has_value()) << section.name;
              std::set<int64_t>& elements = seen[{name->kind, name->tensor}];
              for (int64_t i = name->begin; i < name->end; ++i) {
                EXPECT_TRUE(elements.insert(i).second)
                    << section.name << " " << i;
              }
            }
            EXPECT_EQ(plan.data_bytes(), at);
            std::map<uint64_t, uint64_t> copied;
            for (int64_t c = 0; c < plan.num_chunks(); ++c) {
              for (const PieceCopy& copy : plan.copies(c)) {
                for (int k = 0; k < 3; ++k) {
                  copied[copy.image_offset[k]] = copy.num_elements * 4;
                }
                if (has_published) {
                  copied[copy.image_offset[3]] = copy.weight_bytes;
                }
              }
            }
            uint64_t end = 0;
            for (const auto& [begin, size] : copied) {
              EXPECT_EQ(begin, end);
              end = begin + size;
            }
            EXPECT_EQ(end, plan.image_bytes());
          }
          for (const auto& tensor : RigTensors()) {
            int64_t size = 1;
            for (const int64_t d : tensor.shape) size *= d;
            const auto count = [&](Kind kind) {
              return static_cast<int64_t>(seen[{kind, tensor.name}].size());
            };
            EXPECT_EQ(count(Kind::kMaster), tensor.trainable ? size : 0);
            EXPECT_EQ(count(Kind::kV), tensor.trainable ? size : 0);
            EXPECT_EQ(count(Kind::kPublished),
                      !tensor.trainable || has_published ? size : 0);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ballast::snapshot
