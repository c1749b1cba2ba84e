// Nodes that make replicas over a network that loses frames and parts, while a
// job goes on stepping: each holds what it must, and nothing else.
#include "server/snapshot/job_replicas.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/random.h"
#include "server/base/sim_compute_pool.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/layout/replica_holder.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/held_files.h"
#include "server/snapshot/files/snapshot_reader.h"
#include "server/snapshot/job_snapshots.h"
#include "server/snapshot/snapshot_rig.h"
#include "server/transport/inproc/inproc_transport.h"
#include "server/transport/inproc/link_model.h"
#include "server/transport/pulls.h"

namespace ballast::snapshot {
namespace {

using base::IsOk;
using base::StatusIs;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Shape {
  int nodes = 2;
  int partition_nodes = 0;
  double loss = 0;
  uint64_t capacity_bytes = 0;  // 0: what the formula says
  ReplicaSchedule schedule = {.every_steps = 2};
};

class Cluster {
 public:
  struct Node final : SnapshotPort, transport::PullFramePort {
    Node(Cluster* cluster, const Shape& shape, int rank)
        : cluster(cluster),
          rank(rank),
          pool(&cluster->world, rank + 7, 1),
          random(rank + 11),
          rig(shape.nodes, 1, rank, &cluster->world, 16 << 10, false,
              shape.partition_nodes),
          held(shape.capacity_bytes != 0
                   ? shape.capacity_bytes
                   : HeldBytes(rig.layout(), NodeRank(rank), rig.content())) {}

    void SendSnapshot(NodeRank to, const v1::SnapshotFrame& frame) override {
      cluster->Carry(to.value(), [from = rank, frame](Node& node) {
        node.snapshots->OnFrame(NodeRank(from), frame);
      });
    }
    absl::Status SendPull(NodeRank to, const v1::Pull& frame) override {
      cluster->Carry(to.value(), [from = rank, frame](Node& node) {
        if (node.pulls) node.pulls->OnFrame(NodeRank(from), frame);
      });
      return absl::OkStatus();
    }
    absl::StatusOr<Step> HoldSteps() override {
      cluster->is_held = true;
      return Step(cluster->open_step);
    }
    void ReleaseSteps() override { cluster->is_held = false; }
    std::vector<BudgetInfo> Budget() const override { return {}; }
    void OnSnapshot(const absl::StatusOr<Saved>&) override {}
    void OnReplica(const absl::StatusOr<Saved>& saved) override {
      ended.push_back(saved.status());
    }
    std::string AttachedWorkers() const override { return attached; }

    Cluster* const cluster;
    const int rank;
    base::SimComputePool pool;
    base::SeededRandom random;
    SnapshotRig rig;
    HeldFiles held;
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<transport::Pulls> pulls;
    std::unique_ptr<JobSnapshots> snapshots;
    std::vector<const layout::Chunk*> chunks;
    std::vector<absl::Status> ended;
    std::string attached;
  };

  Cluster(uint64_t seed, const Shape& shape)
      : world(seed),
        links(&world, seed + 1, {.loss = shape.loss}),
        network(&links),
        loss_(shape.loss) {
    for (int n = 0; n < shape.nodes; ++n) {
      auto node = std::make_unique<Node>(this, shape, n);
      node->rig.Fill(0);
      node->transport = *network.AddNode(NodeRank(n), &world);
      node->pulls = std::make_unique<transport::Pulls>(
          transport::Pulls::Parts{.transport = node->transport.get(),
                                  .executor = &world,
                                  .frames = node.get(),
                                  .job_key = 5});
      JobSnapshots::Parts parts;
      parts.job = node->rig.MakeManifest();
      parts.layout = &node->rig.layout();
      parts.node = NodeRank(n);
      parts.state = node->rig.state();
      parts.weights = node->rig.places();
      parts.device = node->rig.device();
      parts.io = &node->pool;
      parts.clock = &world;
      parts.executor = &world;
      parts.random = &node->random;
      parts.held = &node->held;
      parts.replicas = shape.schedule;
      parts.is_link_busy = [this] { return is_busy; };
      parts.port = node.get();
      node->snapshots = std::make_unique<JobSnapshots>(parts);
      node->snapshots->SetPulls(node->pulls.get());
      for (const layout::Bucket& bucket : node->rig.layout().buckets()) {
        for (const auto& chunk :
             node->rig.layout().shard(bucket.id, NodeRank(n)).chunks) {
          node->chunks.push_back(&chunk);
        }
      }
      nodes.push_back(std::move(node));
    }
    for (auto& node : nodes) {
      node->snapshots->OnStarted(WeightVersion(0), WeightVersion(0));
    }
  }

  ~Cluster() {
    for (auto& node : nodes) node->snapshots->SetPulls(nullptr);
    for (auto& node : nodes) node->pulls.reset();
  }

  template <typename Fn>
  void Carry(int to, Fn deliver) {
    if (static_cast<double>(world.random().Below(1000)) < loss_ * 1000) return;
    world.PostAfter(absl::Microseconds(world.random().Below(3000)),
                    [this, to, deliver] { deliver(*nodes[to]); });
  }

  void StepAll() {
    while (is_held) ASSERT_TRUE(world.Step());
    const int64_t step = open_step++;
    int left = static_cast<int>(nodes.size());
    for (auto& node : nodes) {
      world.PostAfter(
          absl::Microseconds(world.random().Below(2000)),
          [this, step, &left, node = node.get()] {
            node->snapshots->OnCommitted(Step(step));
            ASSERT_THAT(node->rig.state()->Commit(node->rig.ScalarsOf(step)),
                        IsOk());
            for (size_t c = 0; c < node->chunks.size(); ++c) {
              world.PostAfter(absl::Microseconds(world.random().Below(2000)),
                              [node, step, c] {
                                node->snapshots->guard()->BeforeUpdate(
                                    static_cast<int64_t>(c));
                                node->rig.FillChunk(*node->chunks[c], step);
                              });
            }
            world.PostAfter(absl::Microseconds(2500), [step, &left, node] {
              node->snapshots->OnFinished(Step(step));
              --left;
            });
          });
    }
    while (left > 0) ASSERT_TRUE(world.Step());
  }

  void RunFor(absl::Duration duration) { world.RunFor(duration); }
  const ReplicaStatus Status(int node) const {
    return nodes[node]->snapshots->status().replicas;
  }
  std::vector<std::string> Names(int node) {
    std::vector<std::string> names;
    const auto entries = nodes[node]->held.List("job");
    if (!entries.ok()) return names;
    for (const DirectoryEntry& entry : *entries) names.push_back(entry.name);
    return names;
  }

  // Without `lost` (-1: none), what the others hold of the version is all of
  // it, and of that version (I18).
  void CheckWhole(int64_t version, int lost) {
    const std::string path = absl::StrCat("job/", StepName(version));
    HeldFiles all(0);
    ASSERT_THAT(all.MakeDirectories(path), IsOk());
    for (auto& node : nodes) {
      if (node->rank == lost) continue;
      const auto entries = node->held.List(path);
      ASSERT_THAT(entries, IsOk()) << node->rank;
      for (const DirectoryEntry& entry : *entries) {
        const std::string name = absl::StrCat(path, "/", entry.name);
        if (all.Find(name) != nullptr) continue;
        ASSERT_THAT(all.Link(name, node->held.Find(name)), IsOk());
      }
    }
    auto reader = SnapshotReader::Open(all, path);
    ASSERT_THAT(reader, IsOk()) << "without node " << lost;
    EXPECT_EQ((*reader)->manifest().step, version);
    int64_t wrong = 0;
    ASSERT_THAT(
        (*reader)->Read(
            [](const StoredSection& section) {
              return section.kind < Kind::kPublished;
            },
            [&](const StoredSection& section, uint64_t offset,
                std::span<const std::byte> bytes) {
              for (size_t i = 0; i < bytes.size(); i += 4) {
                float value;
                std::memcpy(&value, bytes.data() + i, 4);
                const int64_t element =
                    section.begin + static_cast<int64_t>((offset + i) / 4);
                wrong += value != StateValue(section.kind, section.tensor,
                                             element, version);
              }
              return absl::OkStatus();
            }),
        IsOk());
    EXPECT_EQ(wrong, 0) << version;
  }

  base::SimExecutor world;
  transport::LinkModel links;
  transport::InprocNetwork network;
  int64_t open_step = 1;
  bool is_held = false;
  bool is_busy = false;
  std::vector<std::unique_ptr<Node>> nodes;

 private:
  const double loss_;
};

TEST(JobReplicasTest, SurviveTheLossOfAnyNode) {  // I18
  for (const Shape& shape :
       {Shape{.nodes = 2}, Shape{.nodes = 3}, Shape{.nodes = 3, .loss = 0.4},
        Shape{.nodes = 4, .partition_nodes = 2}}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      Cluster cluster(seed, shape);
      for (int s = 0; s < 7; ++s) cluster.StepAll();
      cluster.RunFor(absl::Seconds(60));
      const int64_t last = cluster.Status(0).last_step;
      EXPECT_GT(last, 0);
      EXPECT_EQ(last % 2, 0);
      for (int lost = -1; lost < shape.nodes; ++lost) {
        cluster.CheckWhole(last, lost);
      }
      for (int n = 0; n < shape.nodes; ++n) {
        EXPECT_THAT(cluster.Names(n), ElementsAre(StepName(last)));
        EXPECT_EQ(cluster.Status(n).last_step, last);
        EXPECT_EQ(cluster.Status(n).lag_steps, 7 - last);
        EXPECT_EQ(cluster.Status(n).failed, 0);
        EXPECT_GT(cluster.Status(n).bytes_sent, 0u);
        EXPECT_GT(cluster.Status(n).bytes_received, 0u);
      }
    }
  }
}

// The control: of two nodes that are lost, one held the other's copy.
TEST(JobReplicasTest, DoNotSurviveTwoNeighbours) {
  Cluster cluster(1, {.nodes = 3});
  for (int s = 0; s < 2; ++s) cluster.StepAll();
  cluster.RunFor(absl::Seconds(10));
  const std::string shard = absl::StrCat("job/step-00000002/", ShardName(0, 3));
  std::set<int> holders;
  for (int n = 0; n < 3; ++n) {
    if (cluster.nodes[n]->held.Find(shard) != nullptr) holders.insert(n);
  }
  EXPECT_THAT(holders, ElementsAre(0, 1));
}

// Two sets at most, the copy in them: what the formula promises, and no less.
TEST(JobReplicasTest, KeepToTheirMemory) {
  const Shape shape{.nodes = 3};
  Cluster cluster(2, shape);
  const uint64_t capacity = cluster.nodes[1]->held.capacity_bytes();
  for (int s = 0; s < 12; ++s) {
    cluster.StepAll();
    cluster.RunFor(absl::Seconds(5));
    EXPECT_LE(cluster.nodes[1]->held.bytes_in_use(), capacity);
  }
  EXPECT_EQ(cluster.Status(1).made, 6);
  EXPECT_EQ(cluster.Status(1).failed, 0);
  EXPECT_LE(cluster.nodes[1]->held.bytes_in_use(), capacity / 2);
}

TEST(JobReplicasTest, TooLittleMemoryIsSaidAndHarmsNoStep) {
  Cluster cluster(3, {.nodes = 2, .capacity_bytes = 150'000});
  for (int s = 0; s < 5; ++s) cluster.StepAll();
  cluster.RunFor(absl::Seconds(10));
  EXPECT_EQ(cluster.Status(0).made, 0);
  EXPECT_GT(cluster.Status(0).failed, 0);
  EXPECT_THAT(cluster.Status(1).last_error,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "bytes for replicas are in use"));
  for (int n = 0; n < 2; ++n) {
    EXPECT_THAT(cluster.Names(n), IsEmpty());
    EXPECT_EQ(cluster.nodes[n]->held.bytes_in_use(), 0u);  // I28
  }
}

// A copy that is not what was sent counts for nothing; the one before it stays.
TEST(JobReplicasTest, ADamagedCopyIsNoReplica) {
  Cluster cluster(4, {.nodes = 2});
  for (int s = 0; s < 2; ++s) cluster.StepAll();
  cluster.RunFor(absl::Seconds(10));
  ASSERT_EQ(cluster.Status(0).last_step, 2);
  for (int s = 0; s < 2; ++s) cluster.StepAll();
  // As soon as it is written, and before it is fetched whole.
  std::shared_ptr<HeldFile> own;
  while (own == nullptr || cluster.Status(1).bytes_received == 0) {
    ASSERT_TRUE(cluster.world.Step());
    const auto entries = cluster.nodes[0]->held.List("job");
    for (const DirectoryEntry& entry : *entries) {
      if (entry.name[0] != '.') continue;
      own = cluster.nodes[0]->held.Find(
          absl::StrCat("job/", entry.name, "/", ShardName(0, 2)));
    }
    if (own != nullptr && own->size_bytes() > 5000) {
      own->bytes()[own->size_bytes() - 5000] ^= std::byte{1};
      break;
    }
  }
  cluster.RunFor(absl::Seconds(20));
  EXPECT_EQ(cluster.Status(0).last_step, 2);
  for (int n = 0; n < 2; ++n) {
    EXPECT_THAT(cluster.Names(n), ElementsAre("step-00000002"));
  }
  cluster.CheckWhole(2, 1);
}

TEST(JobReplicasTest, LostLinksEndOneAndNotTheNext) {
  Cluster cluster(5, {.nodes = 2});
  for (int s = 0; s < 2; ++s) cluster.StepAll();
  cluster.RunFor(absl::Seconds(10));
  cluster.nodes[1]->snapshots->SetPulls(nullptr);
  for (int s = 0; s < 2; ++s) cluster.StepAll();
  cluster.RunFor(absl::Seconds(10));
  EXPECT_EQ(cluster.Status(0).last_step, 2);
  EXPECT_EQ(cluster.Status(0).lag_steps, 2);
  EXPECT_EQ(cluster.Status(0).failed, 1);
  EXPECT_THAT(std::string(cluster.Status(0).last_error.message()),
              HasSubstr("node 1"));
  cluster.nodes[1]->snapshots->SetPulls(cluster.nodes[1]->pulls.get());
  for (int s = 0; s < 2; ++s) cluster.StepAll();
  cluster.RunFor(absl::Seconds(10));
  EXPECT_EQ(cluster.Status(0).last_step, 6);
  cluster.CheckWhole(6, 0);
}

// Of a daemon that has gone on with the job of the last one, whose replicas
// went with it: no step is covered, until the next one is.
TEST(JobReplicasTest, WithoutAnyAllStepsLag) {
  Cluster cluster(6, {.nodes = 2});
  for (int s = 0; s < 3; ++s) cluster.StepAll();
  cluster.RunFor(absl::Seconds(10));
  EXPECT_EQ(cluster.Status(0).lag_steps, 1);
  for (auto& node : cluster.nodes) {
    node->snapshots->OnStarted(WeightVersion(3), WeightVersion(0));
  }
  for (int n = 0; n < 2; ++n) EXPECT_EQ(cluster.Status(n).lag_steps, 3);
  cluster.StepAll();
  cluster.RunFor(absl::Seconds(10));
  for (int n = 0; n < 2; ++n) EXPECT_EQ(cluster.Status(n).lag_steps, 0);
}

// What training sends goes first, within bounds; a rate holds beside it.
TEST(JobReplicasTest, YieldToExchangesAndKeepARate) {
  const auto time_of = [](bool is_busy, uint64_t rate) {
    Cluster cluster(
        6, {.nodes = 2,
            .schedule = {.every_steps = 2, .max_bytes_per_second = rate}});
    cluster.is_busy = is_busy;
    for (int s = 0; s < 2; ++s) cluster.StepAll();
    const absl::Time begin = cluster.world.Now();
    while (cluster.Status(0).last_step != 2) {
      if (!cluster.world.Step()) break;
    }
    EXPECT_EQ(cluster.Status(0).last_step, 2);
    return cluster.world.Now() - begin;
  };
  const absl::Duration alone = time_of(false, 0);
  const absl::Duration beside = time_of(true, 0);
  EXPECT_GT(beside, alone + kPatience);
  EXPECT_LT(beside, alone + 6 * kPatience);  // a manifest and a shard each
  EXPECT_GT(time_of(false, 1000), absl::Seconds(1));
}

// For a job that comes back in another shape: its last step, whoever asks.
TEST(JobReplicasTest, TheLastStepIsKept) {
  for (const int asker : {0, 2}) {
    Cluster cluster(10, {.nodes = 3, .schedule = {.every_steps = 100}});
    for (int s = 0; s < 5; ++s) cluster.StepAll();
    std::optional<absl::StatusOr<Saved>> saved;
    const auto save = [&] {
      saved.reset();
      cluster.nodes[asker]->snapshots->SaveLast(
          [&](absl::StatusOr<Saved> result) { saved = std::move(result); });
      cluster.RunFor(absl::Seconds(10));
    };
    cluster.nodes[1]->attached = "rank 1 (pid 7)";
    save();
    ASSERT_TRUE(saved.has_value());
    EXPECT_THAT(*saved, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 "rank 1 (pid 7) is still attached"));
    EXPECT_FALSE(cluster.is_held);
    cluster.nodes[1]->attached.clear();
    save();
    ASSERT_TRUE(saved.has_value());
    ASSERT_THAT(*saved, IsOk());
    for (int lost = 0; lost < 3; ++lost) cluster.CheckWhole(5, lost);
    save();  // again: it is there
    ASSERT_THAT(*saved, IsOk());
    EXPECT_EQ(cluster.Status(1).made, 1);
    cluster.CheckWhole(5, 1);
  }
}

TEST(JobReplicasTest, EndAtAnyTime) {  // I28
  for (int events = 0; events < 400; events += 7) {
    Cluster cluster(8, {.nodes = 3});
    for (int s = 0; s < 4; ++s) cluster.StepAll();
    for (int i = 0; i < events; ++i) cluster.world.Step();
    int stopped = 0;
    for (auto& node : cluster.nodes) {
      node->snapshots->Stop(absl::UnavailableError("the job failed"),
                            [&] { ++stopped; });
    }
    cluster.RunFor(absl::Seconds(1));
    EXPECT_EQ(stopped, 3) << events;
    for (auto& node : cluster.nodes) {
      for (const std::string& name : cluster.Names(node->rank)) {
        EXPECT_TRUE(IsStepName(name)) << name;
      }
    }
    // Some step is whole, whichever node is lost.
    const int64_t last = cluster.Status(0).last_step;
    if (last == 0) continue;
    for (int lost = 0; lost < 3; ++lost) cluster.CheckWhole(last, lost);
  }
}

TEST(JobReplicasTest, BelieveNoFrame) {  // I27
  Cluster cluster(9, {.nodes = 3});
  for (int s = 0; s < 2; ++s) cluster.StepAll();
  for (int i = 0; i < 30; ++i) cluster.world.Step();
  for (const char* id : {"", "x", "0123456789abcdef"}) {
    v1::SnapshotFrame frame;
    frame.set_id(id);
    frame.mutable_collect()->set_manifest_bytes(UINT64_MAX);
    for (auto& node : cluster.nodes) {
      node->snapshots->OnFrame(NodeRank(0), frame);
      node->snapshots->OnFrame(NodeRank(1), frame);
    }
    frame.mutable_held();
    for (auto& node : cluster.nodes) {
      node->snapshots->OnFrame(NodeRank(0), frame);
      node->snapshots->OnFrame(NodeRank(1), frame);
    }
  }
  // Nothing that a peer may ask for is served from beyond what is held.
  for (const int64_t version : {int64_t{-1}, int64_t{2}, INT64_MAX}) {
    for (const int shard : {-1, 0, 3, 4, INT32_MAX}) {
      for (const uint32_t slice : {0u, 1u, UINT32_MAX}) {
        std::vector<std::byte> into(100);
        transport::PullKey key;
        key.version = WeightVersion(version);
        key.owner = NodeRank(shard);
        key.kind = kReplicaPull;
        key.chunk = slice;
        ASSERT_THAT(
            cluster.nodes[0]->pulls->Pull(
                NodeRank(1), key, into,
                [](const absl::Status& status) { EXPECT_FALSE(status.ok()); }),
            IsOk());
      }
    }
  }
  cluster.RunFor(absl::Seconds(30));
  EXPECT_EQ(cluster.Status(2).last_step, 2);
  cluster.CheckWhole(2, 1);
}

}  // namespace
}  // namespace ballast::snapshot
