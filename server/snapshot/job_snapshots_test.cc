// Some nodes' JobSnapshots over a network that loses frames, and a job that
// goes on stepping meanwhile.
#include "server/snapshot/job_snapshots.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/random.h"
#include "server/base/sim_compute_pool.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/life.h"
#include "server/snapshot/files/memory_file_system.h"
#include "server/snapshot/files/snapshot_reader.h"
#include "server/snapshot/snapshot_rig.h"

namespace ballast::snapshot {
namespace {

using base::IsOk;
using base::StatusIs;
using testing::ElementsAre;

class Cluster {
 public:
  struct Node : SnapshotPort {
    Node(Cluster* cluster, int num_nodes, int rank, LifeId life)
        : cluster(cluster),
          rank(rank),
          pool(&cluster->world, rank + 7, 1),
          random(static_cast<uint64_t>(life) * 1000 + rank),
          rig(num_nodes, 1, rank, &cluster->world) {}

    void SendSnapshot(NodeRank to, const v1::SnapshotFrame& frame) override {
      cluster->Send(rank, to.value(), frame);
    }
    absl::StatusOr<Step> HoldSteps() override {
      cluster->is_held = true;
      return Step(cluster->open_step);
    }
    void ReleaseSteps() override { cluster->is_held = false; }
    std::vector<BudgetInfo> Budget() const override {
      return {{.tensor = 3, .path = "weights", .codec = "int8", .calm = 5}};
    }
    void OnSnapshot(const absl::StatusOr<Saved>& saved) override {
      ended.push_back(saved);
    }
    void OnReplica(const absl::StatusOr<Saved>&) override {}
    std::string AttachedWorkers() const override { return ""; }

    Cluster* const cluster;
    const int rank;
    base::SimComputePool pool;
    base::SeededRandom random;
    SnapshotRig rig;
    std::vector<absl::StatusOr<Saved>> ended;
    std::unique_ptr<JobSnapshots> snapshots;
    std::vector<const layout::Chunk*> chunks;
    int64_t version = 0;
  };

  // `shared`: the directory of another life too; null: its own.
  Cluster(uint64_t seed, int num_nodes, double loss, const Schedule& schedule,
          LifeId life = LifeId{1}, MemoryFileSystem* shared = nullptr)
      : world(seed),
        files(shared != nullptr ? *shared : own_files),
        loss_(loss) {
    for (int n = 0; n < num_nodes; ++n) {
      auto node = std::make_unique<Node>(this, num_nodes, n, life);
      node->rig.Fill(0);
      JobSnapshots::Parts parts;
      parts.job = node->rig.MakeManifest();
      parts.layout = &node->rig.layout();
      parts.node = NodeRank(n);
      parts.state = node->rig.state();
      parts.weights = node->rig.places();
      parts.device = node->rig.device();
      parts.files = &files;
      parts.life = life;
      parts.io = &node->pool;
      parts.clock = &world;
      parts.executor = &world;
      parts.random = &node->random;
      parts.schedule = schedule;
      parts.port = node.get();
      node->snapshots = std::make_unique<JobSnapshots>(parts);
      for (const layout::Bucket& bucket : node->rig.layout().buckets()) {
        for (const auto& chunk : bucket.shards[n].chunks) {
          node->chunks.push_back(&chunk);
        }
      }
      nodes.push_back(std::move(node));
    }
    for (auto& node : nodes) {
      node->snapshots->OnStarted(WeightVersion(0), WeightVersion(0));
    }
  }

  void Send(int from, int to, const v1::SnapshotFrame& frame) {
    if (static_cast<double>(world.random().Below(1000)) < loss_ * 1000) return;
    world.PostAfter(absl::Microseconds(world.random().Below(3000)),
                    [this, from, to, frame] {
                      if (is_cut) return;
                      nodes[to]->snapshots->OnFrame(NodeRank(from), frame);
                    });
  }

  // One step: committed on each node at another time, updated chunk by chunk.
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
              node->version = step;
              node->snapshots->OnFinished(Step(step));
              --left;
            });
          });
    }
    while (left > 0) ASSERT_TRUE(world.Step());
  }

  void RunFor(absl::Duration duration) { world.RunFor(duration); }

  // Every element is that of the version.
  void Check(const std::string& path, int64_t version) {
    auto reader = SnapshotReader::Open(files, path);
    ASSERT_THAT(reader, IsOk());
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
    EXPECT_EQ(wrong, 0) << path;  // I18
  }

  base::SimExecutor world;
  MemoryFileSystem own_files;
  MemoryFileSystem& files;
  int64_t open_step = 1;
  bool is_held = false;
  bool is_cut = false;
  std::vector<std::unique_ptr<Node>> nodes;

 private:
  const double loss_;
};

std::vector<std::string> Names(FileSystem& files) {
  std::vector<std::string> names;
  const auto entries = files.List("job");
  if (!entries.ok()) return names;
  for (const DirectoryEntry& entry : *entries) {
    if (entry.name != kLifeName) names.push_back(entry.name);
  }
  return names;
}

TEST(JobSnapshotsTest, SavesWhileTrainingGoesOn) {  // I18
  for (const int nodes : {1, 2, 3}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      for (const double loss : {0.0, 0.4}) {
        Cluster cluster(seed, nodes, loss, {});
        for (int s = 0; s < 3; ++s) cluster.StepAll();
        std::optional<absl::StatusOr<Saved>> saved;
        const int asker = static_cast<int>(seed % nodes);
        cluster.nodes[asker]->snapshots->Save(
            "best",
            [&](absl::StatusOr<Saved> result) { saved = std::move(result); });
        for (int s = 0; s < 8; ++s) cluster.StepAll();
        cluster.RunFor(absl::Seconds(60));
        ASSERT_TRUE(saved.has_value());
        ASSERT_THAT(*saved, IsOk()) << nodes << " " << seed << " " << loss;
        EXPECT_EQ((*saved)->path, "job/best");
        EXPECT_GE((*saved)->step, 3);
        EXPECT_LE((*saved)->step, 12);
        cluster.Check("job/best", (*saved)->step);
        EXPECT_THAT(Names(cluster.files), ElementsAre("best"));
        for (auto& node : cluster.nodes) {
          EXPECT_FALSE(node->snapshots->status().is_saving);
        }
      }
    }
  }
}

TEST(JobSnapshotsTest, SavesAJobThatStandsStill) {
  Cluster cluster(3, 2, 0, {});
  std::optional<absl::StatusOr<Saved>> saved;
  cluster.nodes[1]->snapshots->Save(
      "", [&](absl::StatusOr<Saved> result) { saved = std::move(result); });
  cluster.RunFor(absl::Seconds(5));
  ASSERT_TRUE(saved.has_value());
  ASSERT_THAT(*saved, IsOk());
  EXPECT_EQ((*saved)->path, "job/step-00000000");
  cluster.Check("job/step-00000000", 0);
}

TEST(JobSnapshotsTest, KeepsItsScheduleAndPrunes) {
  Cluster cluster(4, 2, 0.1, {.every_steps = 3, .keep = 2});
  for (int s = 0; s < 12; ++s) {
    cluster.StepAll();
    cluster.RunFor(absl::Seconds(3));
  }
  EXPECT_THAT(Names(cluster.files),
              ElementsAre("step-00000009", "step-00000012"));
  cluster.Check("job/step-00000009", 9);
  EXPECT_EQ(cluster.nodes[0]->snapshots->status().saved, 4);
  EXPECT_EQ(cluster.nodes[1]->snapshots->status().saved, 4);
}

TEST(JobSnapshotsTest, SkipsWhatIsDueWhileItSaves) {
  Cluster cluster(5, 1, 0,
                  {.every_steps = 1, .keep = 0, .max_bytes_per_second = 1000});
  for (int s = 0; s < 4; ++s) cluster.StepAll();
  EXPECT_EQ(cluster.nodes[0]->snapshots->status().skipped, 3);
  EXPECT_TRUE(cluster.nodes[0]->snapshots->status().is_saving);
  cluster.RunFor(absl::Hours(1));
  cluster.Check("job/step-00000001", 1);
}

TEST(JobSnapshotsTest, TellsWhoeverAskedWhatWentWrong) {
  for (const int asker : {0, 1}) {
    Cluster cluster(6, 2, 0, {});
    cluster.StepAll();
    cluster.files.set_capacity(1000);
    std::optional<absl::StatusOr<Saved>> saved;
    const auto save = [&](const std::string& name) {
      saved.reset();
      cluster.nodes[asker]->snapshots->Save(
          name, [&](absl::StatusOr<Saved> result) { saved = result; });
      for (int s = 0; s < 3; ++s) cluster.StepAll();  // unharmed
      cluster.RunFor(absl::Seconds(10));
    };
    save("best");
    ASSERT_TRUE(saved.has_value());
    EXPECT_THAT(*saved, StatusIs(absl::StatusCode::kResourceExhausted,
                                 "No space left on device"));
    EXPECT_THAT(Names(cluster.files), ElementsAre());  // I28
    save("../best");
    EXPECT_THAT(*saved, StatusIs(absl::StatusCode::kInvalidArgument));
    cluster.files.set_capacity(UINT64_MAX);
    save("best");
    EXPECT_THAT(*saved, IsOk());
  }
}

TEST(JobSnapshotsTest, LetsStepsGoOnIfANodeDoesNotAnswer) {
  Cluster cluster(7, 2, 0, {});
  cluster.StepAll();
  cluster.is_cut = true;
  std::optional<absl::StatusOr<Saved>> saved;
  cluster.nodes[0]->snapshots->Save(
      "best", [&](absl::StatusOr<Saved> result) { saved = result; });
  EXPECT_TRUE(cluster.is_held);
  cluster.RunFor(absl::Seconds(15));
  EXPECT_FALSE(cluster.is_held);
  ASSERT_TRUE(saved.has_value());
  EXPECT_THAT(*saved, StatusIs(absl::StatusCode::kDeadlineExceeded, "node 1"));
  cluster.is_cut = false;
  for (int s = 0; s < 3; ++s) cluster.StepAll();
  cluster.nodes[1]->snapshots->Save(
      "later", [&](absl::StatusOr<Saved> result) { saved = result; });
  cluster.RunFor(absl::Seconds(5));
  EXPECT_THAT(*saved, IsOk());
  cluster.Check("job/later", 4);
}

// Two lives that know nothing of each other, in one directory.
struct Lives {
  explicit Lives(int nodes)
      : first(21, nodes, 0, {.every_steps = 2, .keep = 2}, LifeId{1}, &files),
        second(22, nodes, 0, {.every_steps = 2, .keep = 2}, LifeId{2}, &files) {
  }

  static void Step(Cluster& life, int steps) {
    for (int s = 0; s < steps; ++s) {
      life.StepAll();
      life.RunFor(absl::Seconds(3));
    }
  }
  static SnapshotStatus Status(Cluster& life) {
    return life.nodes.back()->snapshots->status();
  }

  MemoryFileSystem files;
  Cluster first;
  Cluster second;
};

TEST(JobSnapshotsTest, TheEarlierOfTwoLivesSavesNoMore) {
  for (const int nodes : {1, 3}) {
    Lives lives(nodes);
    Lives::Step(lives.first, 6);
    lives.first.Check("job/step-00000006", 6);
    Lives::Step(lives.second, 4);  // claims it with its step 2
    // Of the first one, which was the newest then.
    EXPECT_THAT(Names(lives.files),
                ElementsAre("step-00000002", "step-00000004", "step-00000006"));
    Lives::Step(lives.first, 6);  // unharmed
    EXPECT_EQ(lives.first.nodes[0]->version, 12);
    EXPECT_THAT(Names(lives.files),
                ElementsAre("step-00000002", "step-00000004", "step-00000006"));
    const SnapshotStatus status = Lives::Status(lives.first);
    EXPECT_EQ(status.saved, 3);
    EXPECT_EQ(status.failed, 0);
    // Node 0 counts those that it does not even begin.
    EXPECT_EQ(lives.first.nodes[0]->snapshots->status().superseded, 3);
    EXPECT_EQ(status.superseded, nodes == 1 ? 3 : 1);
    EXPECT_THAT(status.other_life,
                testing::HasSubstr("another life of the job writes here (since "
                                   "step 2)"));
    // Not one line for each step.
    ASSERT_EQ(lives.first.nodes.back()->ended.size(), 4u);
    EXPECT_THAT(lives.first.nodes.back()->ended.back(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "or start one of them with another "
                         "snapshots.directory"));
    // Whoever asks is told why, on any node.
    std::optional<absl::StatusOr<Saved>> saved;
    lives.first.nodes.back()->snapshots->Save(
        "best", [&](absl::StatusOr<Saved> result) { saved = result; });
    lives.first.RunFor(absl::Seconds(10));
    ASSERT_TRUE(saved.has_value());
    EXPECT_THAT(*saved, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 "another life of the job"));
    Lives::Step(lives.second, 4);
    EXPECT_EQ(Lives::Status(lives.second).saved, 4);
    EXPECT_EQ(Lives::Status(lives.second).superseded, 0);
    lives.second.Check("job/step-00000008", 8);
    EXPECT_THAT(Names(lives.files),
                ElementsAre("step-00000006", "step-00000008"));
  }
}

// The operator has ended the later one.
TEST(JobSnapshotsTest, GoesOnWhereTheOtherLifeIsOver) {
  Lives lives(2);
  Lives::Step(lives.first, 2);
  Lives::Step(lives.second, 2);
  Lives::Step(lives.first, 4);
  EXPECT_EQ(Lives::Status(lives.first).saved, 1);
  ASSERT_THAT(lives.files.RemoveAll("job/.life"), IsOk());
  Lives::Step(lives.first, 4);  // looks at the first, saves the second
  EXPECT_EQ(Lives::Status(lives.first).saved, 2);
  EXPECT_EQ(Lives::Status(lives.first).other_life, "");
  lives.first.Check("job/step-00000010", 10);
  Lives::Step(lives.second, 4);
  EXPECT_EQ(Lives::Status(lives.second).saved, 1);
  EXPECT_NE(Lives::Status(lives.second).other_life, "");
}

// The claim comes at any moment of the other one's save, which loses its files.
TEST(JobSnapshotsTest, AClaimInTheMiddleOfASaveIsTheReason) {
  int refused = 0;
  for (const int nodes : {1, 2}) {
    for (int events = 0; events < 60; ++events) {
      Lives lives(nodes);
      Lives::Step(lives.first, 1);
      std::optional<absl::StatusOr<Saved>> saved;
      lives.first.nodes[0]->snapshots->Save(
          "best", [&](absl::StatusOr<Saved> result) { saved = result; });
      for (int i = 0; i < events && lives.first.world.Step(); ++i) {
      }
      Lives::Step(lives.second, 2);
      lives.first.RunFor(absl::Seconds(60));
      ASSERT_TRUE(saved.has_value()) << events;
      if (saved->ok()) {
        lives.first.Check("job/best", 1);
      } else {
        ++refused;
        EXPECT_THAT(*saved, StatusIs(absl::StatusCode::kFailedPrecondition,
                                     "another life of the job writes here"))
            << events;
      }
      lives.second.Check("job/step-00000002", 2);
      for (const std::string& name : Names(lives.files)) {
        EXPECT_NE(name[0], '.') << name << " " << events;  // I28
      }
    }
  }
  EXPECT_GT(refused, 20);
}

TEST(JobSnapshotsTest, WritesNothingWhereTheRecordIsDamaged) {  // I27
  Cluster cluster(23, 2, 0, {.every_steps = 1});
  cluster.StepAll();
  cluster.RunFor(absl::Seconds(3));
  *cluster.files.Contents("job/.life") = "x";
  for (int s = 0; s < 3; ++s) {
    cluster.StepAll();
    cluster.RunFor(absl::Seconds(3));
  }
  const SnapshotStatus status = cluster.nodes[1]->snapshots->status();
  EXPECT_EQ(status.saved, 1);
  EXPECT_EQ(status.failed, 3);
  EXPECT_EQ(status.superseded, 0);
  EXPECT_THAT(status.last_error,
              StatusIs(absl::StatusCode::kDataLoss, "job/.life is damaged"));
  EXPECT_THAT(Names(cluster.files), ElementsAre("step-00000001"));
}

TEST(JobSnapshotsTest, EndsAtAnyTime) {  // I28
  for (int events = 0; events < 120; events += 3) {
    Cluster cluster(8, 2, 0, {});
    cluster.StepAll();
    int answers = 0;
    cluster.nodes[0]->snapshots->Save(
        "best", [&](absl::StatusOr<Saved>) { ++answers; });
    for (int i = 0; i < events; ++i) cluster.world.Step();
    int stopped = 0;
    for (auto& node : cluster.nodes) {
      node->snapshots->Stop(absl::UnavailableError("the job failed"),
                            [&] { ++stopped; });
    }
    cluster.RunFor(absl::Seconds(1));
    EXPECT_EQ(stopped, 2) << events;
    EXPECT_EQ(answers, 1) << events;
    for (const std::string& name : Names(cluster.files)) {
      if (name == "best") cluster.Check("job/best", 1);
    }
  }
}

TEST(JobSnapshotsTest, BelievesNoFrame) {  // I27
  Cluster cluster(9, 3, 0, {});
  cluster.StepAll();
  JobSnapshots& zero = *cluster.nodes[0]->snapshots;
  JobSnapshots& one = *cluster.nodes[1]->snapshots;
  for (const char* id : {"", "x", "0123456789abcdef"}) {
    v1::SnapshotFrame frame;
    frame.set_id(id);
    zero.OnFrame(NodeRank(1), frame);
    zero.OnFrame(NodeRank(99), frame);
    frame.mutable_wish()->set_name("../../etc");
    zero.OnFrame(NodeRank(1), frame);
    frame.mutable_order()->set_name("..");
    one.OnFrame(NodeRank(0), frame);
    frame.mutable_order()->set_version(-5);
    one.OnFrame(NodeRank(0), frame);
    one.OnFrame(NodeRank(2), frame);  // not the coordinator
    frame.mutable_shard()->set_size_bytes(UINT64_MAX);
    zero.OnFrame(NodeRank(1), frame);
    frame.mutable_outcome()->set_code(999);
    zero.OnFrame(NodeRank(1), frame);
    one.OnFrame(NodeRank(0), frame);
  }
  cluster.RunFor(absl::Seconds(1));
  EXPECT_FALSE(zero.status().is_saving);
  EXPECT_FALSE(one.status().is_saving);
  EXPECT_THAT(Names(cluster.files), ElementsAre());
}

}  // namespace
}  // namespace ballast::snapshot
