// Residuals of error feedback: kept while steps overwrite them, stored of
// every node, and the same sum wherever they go (I17, I18).
#include "server/optimizer/residuals.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/snapshot/capture.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/export.h"
#include "server/snapshot/files/memory_file_system.h"
#include "server/snapshot/files/snapshot_reader.h"
#include "server/snapshot/loader.h"
#include "server/snapshot/shard_plan.h"
#include "server/snapshot/shard_testing.h"
#include "server/snapshot/snapshot_rig.h"

namespace ballast::snapshot {
namespace {

using base::IsOk;

constexpr int64_t kStep = 5;
const int kVersion = optimizer::Residuals::VersionAt(kStep);

// Sums of these depend on their order.
float Value(int node, int tensor, int64_t element) {
  return static_cast<float>(element % 977 + 1) /
         static_cast<float>(3 + node * 7 + tensor);
}

// One node with its residuals.
struct Node {
  Node(int nodes, int node, base::Executor* executor)
      : rig(nodes, 1, node, executor),
        residuals(*optimizer::Residuals::Create(rig.device(), rig.layout(),
                                                rig.node())) {
    rig.Fill(kStep);
  }

  ShardContent content() const {
    ShardContent content = rig.content();
    content.has_residuals = true;
    return content;
  }

  // Of a version of the arrays, every element of every tensor.
  template <typename Fn>
  void ForEach(int version, Fn fn) {
    for (const layout::Bucket& bucket : rig.layout().buckets()) {
      const std::span<float> array =
          residuals->version(version).subspan(residuals->OffsetOf(bucket.id));
      for (const layout::Shard& shard : bucket.shards) {
        for (const layout::Piece& piece : shard.pieces) {
          for (int64_t i = 0; i < piece.size(); ++i) {
            fn(piece.tensor.value(), piece.begin + i,
               &array[piece.bucket_offset + i]);
          }
        }
      }
    }
  }

  void Fill() {
    ForEach(kVersion, [this](int tensor, int64_t element, float* value) {
      *value = Value(rig.node().value(), tensor, element);
    });
  }

  SnapshotRig rig;
  const std::unique_ptr<optimizer::Residuals> residuals;
};

std::vector<std::unique_ptr<Node>> MakeNodes(int count,
                                             base::Executor* executor) {
  std::vector<std::unique_ptr<Node>> nodes;
  for (int n = 0; n < count; ++n) {
    nodes.push_back(std::make_unique<Node>(count, n, executor));
  }
  return nodes;
}

void Save(std::vector<std::unique_ptr<Node>>& nodes, FileSystem& files) {
  Manifest manifest = nodes[0]->rig.MakeManifest();
  manifest.id = "0123456789abcdef";
  manifest.step = manifest.optimizer_step = kStep;
  manifest.has_residuals = true;
  for (auto& node : nodes) {
    SaveShard(node->rig, node->content(), node->residuals.get(),
              {{node->rig.node().value(), ""}}, files, &manifest);
  }
  ASSERT_THAT(PublishSnapshot(files, manifest, "s", LifeId{1}), IsOk());
}

void Load(FileSystem& files, Node* node) {
  uint64_t checksum = 0;
  ASSERT_THAT(ReadManifest(files, "job/s", &checksum), IsOk());
  LoadTarget target;
  target.layout = &node->rig.layout();
  target.node = node->rig.node();
  target.kernels = &kernels::Reference();
  target.state = node->rig.state();
  target.weights = node->rig.places();
  target.residuals = node->residuals.get();
  const auto loaded = LoadState(files, "job/s", checksum, target, nullptr);
  ASSERT_THAT(loaded, IsOk());
  EXPECT_TRUE(loaded->has_residuals);
}

std::string Canonical(FileSystem& files) {
  auto reader = SnapshotReader::Open(files, "job/s");
  EXPECT_THAT(reader, IsOk());
  MemoryFileSystem out;
  EXPECT_THAT(ExportSnapshot(**reader, ExportContent::kState, out, "state"),
              IsOk());
  return *out.Contents("state");
}

TEST(ResidualsTest, GoToNodesSoThatTheirSumStays) {
  for (const int stored : {1, 2, 3, 5}) {
    for (const int nodes : {1, 2, 3, 5}) {
      std::vector<int> count(nodes);
      int last = 0;
      for (int n = 0; n < stored; ++n) {
        const int to = NodeOfResidual(n, stored, nodes);
        ASSERT_GE(to, last);
        ASSERT_LT(to, nodes);
        last = to;
        ++count[to];
      }
      for (int n = 1; n < nodes; ++n) EXPECT_LE(count[n], 1);
      if (stored == nodes) {
        EXPECT_EQ(count[0], 1);
      }
    }
  }
}

TEST(ResidualsTest, AreTheSameBitsOnAsManyNodes) {
  base::SimExecutor executor(1);
  MemoryFileSystem files;
  auto saved = MakeNodes(3, &executor);
  for (auto& node : saved) node->Fill();
  Save(saved, files);
  for (auto& node : MakeNodes(3, &executor)) {
    Load(files, node.get());
    const int rank = node->rig.node().value();
    node->ForEach(kVersion, [&](int tensor, int64_t element, float* value) {
      ASSERT_EQ(*value, Value(rank, tensor, element)) << rank;
    });
    // Of the other version nothing is kept.
    node->ForEach(1 - kVersion,
                  [](int, int64_t, float* value) { ASSERT_EQ(*value, 0); });
  }
}

TEST(ResidualsTest, AreTheSameStateWhereverTheyGo) {
  base::SimExecutor executor(1);
  MemoryFileSystem files;
  auto nodes = MakeNodes(3, &executor);
  for (auto& node : nodes) node->Fill();
  Save(nodes, files);
  const std::string first = Canonical(files);
  for (const int count : {2, 5, 1, 3}) {
    nodes = MakeNodes(count, &executor);
    for (auto& node : nodes) Load(files, node.get());
    ASSERT_THAT(files.RemoveAll("job"), IsOk());
    Save(nodes, files);
    EXPECT_EQ(Canonical(files), first) << count;
  }
  // The control: another residual is another state.
  nodes[2]->residuals->version(kVersion)[7] += 1;
  ASSERT_THAT(files.RemoveAll("job"), IsOk());
  Save(nodes, files);
  EXPECT_NE(Canonical(files), first);
}

TEST(ResidualsTest, AreKeptUntilTheirVersionIsOverwritten) {
  base::SimExecutor executor(1);
  Node node(2, 1, &executor);
  const ShardPlan plan(node.rig.layout(), node.rig.node(), node.content());
  Capture capture(&plan, node.rig.state(), node.rig.places(),
                  node.residuals.get());
  const auto overwrite = [&](int version, bool says_so) {
    for (const layout::Bucket& bucket : node.rig.layout().buckets()) {
      if (says_so) capture.BeforeResiduals(version, bucket.id);
      for (float& value : node.residuals->version(version).subspan(
               node.residuals->OffsetOf(bucket.id), bucket.scratch_elements)) {
        value = -1;
      }
    }
  };
  std::vector<std::byte> image(plan.image_bytes());
  node.Fill();
  capture.Begin(image, kStep);
  capture.CopyNext(INT64_MAX);
  ASSERT_TRUE(capture.is_complete());
  const std::vector<std::byte> expected = image;

  for (int round = 0; round < 20; ++round) {
    node.Fill();
    capture.Begin(image, kStep);
    std::thread reader([&] {
      if (round % 2 == 0) capture.CopyNext(INT64_MAX);
    });
    overwrite(1 - kVersion, true);  // the step after: nothing of it is kept
    overwrite(kVersion, true);      // and the one after that
    reader.join();
    capture.CopyNext(INT64_MAX);
    EXPECT_EQ(image, expected);
  }
  EXPECT_GT(capture.bytes_by_updates(), 0u);

  // The control.
  node.Fill();
  capture.Begin(image, kStep);
  overwrite(kVersion, false);
  capture.CopyNext(INT64_MAX);
  EXPECT_NE(image, expected);
}

}  // namespace
}  // namespace ballast::snapshot
