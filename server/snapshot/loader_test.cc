// What was saved on A nodes x workers is the same state on B of them (I17).
#include "server/snapshot/loader.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/memory_file_system.h"
#include "server/snapshot/files/snapshot_reader.h"
#include "server/snapshot/shard_testing.h"
#include "server/snapshot/snapshot_rig.h"

namespace ballast::snapshot {
namespace {

using base::IsOk;
using base::StatusIs;

constexpr char kPath[] = "job/step-00000005";

// Writes the state of version 5, one node after the other; the first
// `gatherers` of them keep only their own parts of the weights.
void SaveOn(int nodes, int workers, uint64_t bucket_bytes, bool has_published,
            FileSystem& files, int partition_nodes = 0, int gatherers = 0) {
  base::SimExecutor executor(1);
  Manifest manifest;
  for (int n = 0; n < nodes; ++n) {
    SnapshotRig rig(nodes, workers, n, &executor, bucket_bytes, has_published,
                    partition_nodes, n < gatherers);
    rig.Fill(5);
    if (n == 0) {
      manifest = rig.MakeManifest();
      manifest.id = "0123456789abcdef";
      manifest.step = manifest.optimizer_step = 5;
      manifest.groups = rig.ScalarsOf(5).groups;
    }
    std::vector<Cursor> cursors;
    const auto scalars = rig.ScalarsOf(5);
    for (int l = 0; l < workers; ++l) {
      cursors.push_back({n * workers + l, scalars.cursors[l]});
    }
    SaveShard(rig, rig.content(), nullptr, std::move(cursors), files,
              &manifest);
  }
  ASSERT_THAT(PublishSnapshot(files, manifest, "step-00000005", LifeId{1}),
              IsOk());
}

uint64_t ChecksumOf(FileSystem& files) {
  uint64_t checksum = 0;
  EXPECT_THAT(ReadManifest(files, kPath, &checksum), IsOk());
  return checksum;
}

// Weights as they are where they are no more than a cast.
void CastMasters(SnapshotRig& rig) {
  for (size_t t = 0; t < rig.layout().tensors().size(); ++t) {
    const layout::TensorSpec& tensor = rig.layout().tensors()[t];
    const layout::TensorPlace& place = rig.layout().places()[t];
    const int64_t size = kernels::SizeOf(tensor.dtype);
    for (int64_t i = 0; tensor.trainable && i < place.num_elements; ++i) {
      const float master = StateValue(Kind::kMaster, static_cast<int>(t), i, 5);
      kernels::Reference().cast(
          &master, tensor.dtype, 1,
          rig.weights().data() + place.weight_offset + i * size);
    }
  }
}

struct Loaded {
  explicit Loaded(SnapshotRig* rig) : rig(*rig) {}
  absl::Status Load(FileSystem& files, bool wants_published) {
    std::fill(rig.weights().begin(), rig.weights().end(), std::byte{0});
    LoadTarget target;
    target.layout = &rig.layout();
    target.node = rig.node();
    target.kernels = &kernels::Reference();
    target.state = rig.state();
    target.weights = rig.places();
    target.wants_published = wants_published;
    auto loaded = LoadState(files, kPath, ChecksumOf(files), target, nullptr);
    if (loaded.ok()) result = *std::move(loaded);
    return loaded.status();
  }
  SnapshotRig& rig;
  LoadedState result;
};

// The whole state, as that of the version: padding is zero.
void CheckState(SnapshotRig& rig, base::SimExecutor* executor, int workers,
                uint64_t bucket_bytes, int partition_nodes = 0) {
  SnapshotRig expected(rig.layout().topology().num_nodes, workers,
                       rig.node().value(), executor, bucket_bytes,
                       /*has_published=*/false, partition_nodes);
  expected.Fill(5);
  const auto bytes = [](std::span<const float> array) {
    return std::string(reinterpret_cast<const char*>(array.data()),
                       array.size_bytes());
  };
  EXPECT_EQ(bytes(rig.state()->master()), bytes(expected.state()->master()));
  EXPECT_EQ(bytes(rig.state()->moment(0)), bytes(expected.state()->moment(0)));
  EXPECT_EQ(bytes(rig.state()->moment(1)), bytes(expected.state()->moment(1)));
}

TEST(LoaderTest, LoadsOnAnyNodesAndWorkers) {  // I17
  base::SimExecutor executor(1);
  const std::pair<int, int> shapes[] = {{1, 1}, {3, 2}, {2, 3}, {5, 1}, {9, 1}};
  for (const auto& [nodes, workers] : shapes) {
    for (const bool has_published : {false, true}) {
      MemoryFileSystem files;
      SaveOn(nodes, workers, 16 << 10, has_published, files);
      for (const auto& [to_nodes, to_workers] : shapes) {
        for (int n = 0; n < to_nodes; ++n) {
          const uint64_t bucket_bytes = n % 2 == 0 ? 8 << 10 : 1 << 20;
          SnapshotRig rig(to_nodes, to_workers, n, &executor, bucket_bytes);
          Loaded loaded(&rig);
          ASSERT_THAT(loaded.Load(files, has_published), IsOk());
          CheckState(rig, &executor, to_workers, bucket_bytes);
          EXPECT_EQ(loaded.result.step, 5);
          EXPECT_EQ(loaded.result.optimizer_step, 5);
          EXPECT_EQ(loaded.result.groups, rig.ScalarsOf(5).groups);
          EXPECT_EQ(loaded.result.stored_world_size, nodes * workers);
          if (nodes * workers == to_nodes * to_workers) {
            EXPECT_EQ(loaded.result.cursors, rig.ScalarsOf(5).cursors);
          } else {
            EXPECT_TRUE(loaded.result.cursors.empty());
          }
          EXPECT_EQ(loaded.result.rank0_cursor, "rank 0 at 5");
          if (!has_published) continue;
          // Bit for bit what was published, frozen tensors included.
          const std::vector<std::byte> weights(rig.weights().begin(),
                                               rig.weights().end());
          std::fill(rig.weights().begin(), rig.weights().end(), std::byte{0});
          rig.Fill(5);
          EXPECT_TRUE(std::equal(weights.begin(), weights.end(),
                                 rig.weights().begin()));
        }
      }
    }
  }
}

// Of partition groups each shard is stored once; all groups load the same, and
// other groups, or none, load it too.
TEST(LoaderTest, PartitionGroupsStoreOnceAndLoadAll) {  // I14, I17
  base::SimExecutor executor(1);
  const std::pair<int, int> groups[] = {{4, 0}, {4, 2}, {4, 1}, {6, 3}, {3, 0}};
  for (const auto& [nodes, owners] : groups) {
    MemoryFileSystem files;
    SaveOn(nodes, 1, 8 << 10, /*has_published=*/true, files, owners);
    for (const auto& [to_nodes, to_owners] : groups) {
      for (int n = 0; n < to_nodes; ++n) {
        SnapshotRig rig(to_nodes, 1, n, &executor, 16 << 10,
                        /*has_published=*/false, to_owners);
        Loaded loaded(&rig);
        ASSERT_THAT(loaded.Load(files, /*wants_published=*/true), IsOk());
        CheckState(rig, &executor, 1, 16 << 10, to_owners);
      }
    }
  }
}

// Where weights are not resident a node stores and loads its own parts; from
// there to where they are, and back. Nothing else of the segment is touched.
TEST(LoaderTest, PartsOfWeightsGoAnywhere) {  // I14, I17
  base::SimExecutor executor(1);
  struct Shape {
    int nodes;
    int owners;
    bool gathers;
  };
  const Shape shapes[] = {{1, 0, true}, {3, 0, true}, {3, 0, false},
                          {4, 2, true}, {4, 1, true}, {5, 0, true}};
  for (const Shape& from : shapes) {
    for (const bool has_published : {false, true}) {
      MemoryFileSystem files;
      SaveOn(from.nodes, 1, 16 << 10, has_published, files, from.owners,
             from.gathers ? from.nodes : 0);
      for (const Shape& to : shapes) {
        for (int n = 0; n < to.nodes; ++n) {
          SnapshotRig rig(to.nodes, 1, n, &executor, 8 << 10, has_published,
                          to.owners, to.gathers);
          Loaded loaded(&rig);
          ASSERT_THAT(loaded.Load(files, has_published), IsOk());
          CheckState(rig, &executor, 1, 8 << 10, to.owners);
          SnapshotRig expected(to.nodes, 1, n, &executor, 8 << 10);
          expected.Fill(5);
          if (!has_published) CastMasters(expected);
          // Of the expected segment, what this node has.
          std::vector<std::byte> parts(rig.weights().size());
          for (size_t t = 0; t < rig.layout().tensors().size(); ++t) {
            const auto& place = rig.layout().places()[t];
            const uint64_t size =
                place.num_elements *
                kernels::SizeOf(rig.layout().tensors()[t].dtype);
            rig.places().ForEach(place.weight_offset,
                                 place.weight_offset + size,
                                 [&](uint64_t at, std::span<std::byte> here) {
                                   std::copy_n(expected.weights().begin() + at,
                                               here.size(), parts.begin() + at);
                                 });
          }
          ASSERT_TRUE(
              std::equal(parts.begin(), parts.end(), rig.weights().begin()))
              << from.nodes << " to " << to.nodes << ", node " << n;
        }
      }
    }
  }
}

// The control: nodes that do not agree on who stores what.
TEST(LoaderTest, PartsThatNobodyStoresAreMissed) {  // I17
  MemoryFileSystem files;
  SaveOn(2, 1, 8 << 10, false, files, 0, /*gatherers=*/1);
  EXPECT_THAT(SnapshotReader::Open(files, kPath).status(),
              StatusIs(absl::StatusCode::kDataLoss,
                       "do not hold each element once: published of "
                       "tensor \"frozen\" at element 1024"));
}

TEST(LoaderTest, CastsMastersWhereNoPublishedWeightsAreWanted) {
  base::SimExecutor executor(1);
  MemoryFileSystem files;
  SaveOn(2, 1, 16 << 10, true, files);
  SnapshotRig rig(1, 1, 0, &executor);
  Loaded loaded(&rig);
  ASSERT_THAT(loaded.Load(files, /*wants_published=*/false), IsOk());
  SnapshotRig expected(1, 1, 0, &executor);
  expected.Fill(5);
  CastMasters(expected);
  EXPECT_TRUE(std::equal(rig.weights().begin(), rig.weights().end(),
                         expected.weights().begin()));
}

TEST(LoaderTest, RefusesDamageAndReplacement) {  // I17, I27
  base::SimExecutor executor(1);
  MemoryFileSystem files;
  SaveOn(2, 1, 16 << 10, false, files);
  SnapshotRig rig(1, 1, 0, &executor);
  std::string& bytes =
      *files.Contents(absl::StrCat(kPath, "/", ShardName(1, 2)));
  bytes[bytes.size() / 2] ^= 0x10;
  EXPECT_THAT(Loaded(&rig).Load(files, false),
              StatusIs(absl::StatusCode::kDataLoss, ShardName(1, 2)));
  bytes[bytes.size() / 2] ^= 0x10;
  LoadTarget target;
  target.layout = &rig.layout();
  target.kernels = &kernels::Reference();
  target.state = rig.state();
  target.weights = rig.places();
  EXPECT_THAT(LoadState(files, kPath, ChecksumOf(files) + 1, target, nullptr),
              StatusIs(absl::StatusCode::kAborted, "was replaced"));
}

TEST(LoaderTest, SaysWhatDoesNotFit) {
  base::SimExecutor executor(1);
  SnapshotRig rig(1, 1, 0, &executor);
  Manifest manifest = rig.MakeManifest();
  manifest.uid = 1000;
  const JobIdentity good = {.tenant = "default",
                            .uid = 1000,
                            .optimizer = kernels::OptimizerKind::kAdamW,
                            .any_momentum = false,
                            .num_groups = 2};
  const auto check = [&](const JobIdentity& job, auto change) {
    std::vector<layout::TensorSpec> tensors = RigTensors();
    change(tensors);
    return CheckFits(manifest, kPath, job, tensors);
  };
  const auto nothing = [](auto&) {};
  EXPECT_THAT(check(good, nothing), IsOk());
  EXPECT_THAT(check(good, [](auto& t) { std::swap(t[0], t[3]); }), IsOk());
  JobIdentity job = good;
  job.uid = 1001;
  EXPECT_THAT(check(job, nothing),
              StatusIs(absl::StatusCode::kPermissionDenied, "another user"));
  job.uid = 0;
  EXPECT_THAT(check(job, nothing), IsOk());
  job = good;
  job.tenant = "other";
  EXPECT_THAT(check(job, nothing),
              StatusIs(absl::StatusCode::kPermissionDenied));
  const auto refused = [&](const JobIdentity& job, auto change,
                           const char* says) {
    EXPECT_THAT(check(job, change),
                StatusIs(absl::StatusCode::kInvalidArgument, says));
  };
  job = good;
  job.optimizer = kernels::OptimizerKind::kAdam;
  refused(job, nothing, "the optimizer is adam here, adamw in");
  job = good;
  job.num_groups = 1;
  refused(job, nothing, "1 param groups here, 2 in");
  refused(
      good,
      [](auto& t) {
        t[0].shape = {2000, 5};
      },
      "\"wte\" has shape [2000, 5] here, [5, 2000] in");
  refused(
      good, [](auto& t) { t[3].dtype = kernels::DType::kFloat32; },
      "\"mlp\" is float32 here, bfloat16 in");
  refused(
      good, [](auto& t) { t[4].trainable = true; }, "trained here");
  refused(
      good, [](auto& t) { t[0].name = "wpe"; }, "\"wpe\" is not in");
  refused(
      good, [](auto& t) { t.pop_back(); }, "5 tensors here, 6 in");
}

}  // namespace
}  // namespace ballast::snapshot
