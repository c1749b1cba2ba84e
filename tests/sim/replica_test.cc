// Whole jobs that lose a node for good, or come back in another shape, and go
// on from the replicas that the nodes hold: no file is read, and the bits are
// those of a run that had no fault and was resized at that step.
#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference.h"
#include "server/daemon/job_runtime.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/held_files.h"
#include "server/snapshot/files/manifest.h"
#include "server/snapshot/files/memory_file_system.h"
#include "server/snapshot/files/safetensors.h"
#include "server/snapshot/files/snapshot_reader.h"
#include "server/snapshot/held_sets.h"
#include "tests/sim/cluster.h"
#include "tests/sim/scenario.h"

namespace ballast::sim {
namespace {

using snapshot::HeldFiles;
using snapshot::MemoryFileSystem;

Scenario MakeScenario(int nodes, int workers) {
  Scenario scenario;
  scenario.name = "replicas";
  scenario.nodes = nodes;
  scenario.workers = workers;
  scenario.tensors = {
      {.name = "wte", .shape = {5, 2000}},
      {.name = "scalar", .shape = {}},
      {.name = "mlp", .shape = {6001}, .dtype = kernels::DType::kBFloat16},
      {.name = "frozen", .shape = {300}, .trainable = false},
      {.name = "ones", .shape = {2500}}};
  scenario.optimizer = kernels::OptimizerKind::kAdamW;
  scenario.groups = {{.lr = 0.01, .weight_decay = 0.1}};
  scenario.clip = 1;
  scenario.steps = 9;
  scenario.replica_every = 2;
  return scenario;
}

void Add(Fault::Kind kind, int64_t step, int where, Scenario* scenario) {
  Fault& fault = scenario->faults.emplace_back();
  fault.kind = kind;
  fault.step = step;
  fault.where = where;
}

std::string Violations(const Result& result) {
  std::string text;
  for (const std::string& violation : result.violations) {
    absl::StrAppend(&text, violation, "\n");
  }
  return text;
}

// A first life that ends when a node is lost, and what its nodes hold then.
struct FirstLife {
  FirstLife(Scenario first, uint64_t seed, int lost) : scenario(first) {
    // Computing takes its time too: a replica is whole by then.
    for (const int64_t step : {3, 5}) {
      Add(Fault::Kind::kSlow, step, 0, &scenario);
      scenario.faults.back().back_after = absl::Seconds(3);
    }
    if (lost >= 0) {
      Add(Fault::Kind::kDaemonDies, 7, lost, &scenario);
      scenario.expect_failure = "node";
    } else {
      // All workers leave, and do not come again.
      for (int rank = 0; rank < scenario.world_size(); ++rank) {
        Add(Fault::Kind::kCrash, 7, rank, &scenario);
      }
    }
    cluster = std::make_unique<Cluster>(scenario, seed, kernels::Reference());
    const Result result = cluster->RunLife();
    EXPECT_TRUE(result.passed()) << Violations(result);
    held_step = lost >= 0 ? cluster->NewestHeldStep() : 6;
  }

  // The same job in another shape.
  Scenario Next(int nodes, int workers) const {
    Scenario next = scenario;
    next.nodes = nodes;
    next.workers = workers;
    next.steps = held_step + 4;
    next.first_version = held_step;
    next.expect_failure.clear();
    next.earlier = {{held_step, scenario.nodes, scenario.workers}};
    next.faults.clear();
    return next;
  }

  Scenario scenario;
  std::unique_ptr<Cluster> cluster;
  int64_t held_step = 0;
};

Result Reopen(FirstLife& first, const Scenario& next,
              const std::vector<int>& from, uint64_t seed = 77) {
  return Cluster(next, seed, kernels::Reference(), first.cluster.get(), from)
      .Run();
}

// A damaged bit in the middle of a file's data.
void Damage(HeldFiles* files, int64_t step, const std::string& name) {
  const auto file = files->Find(
      absl::StrCat(kJobName, "/", snapshot::StepName(step), "/", name));
  ASSERT_NE(file, nullptr) << name;
  file->bytes()[file->size_bytes() * 2 / 3] ^= std::byte{16};
}

// As many nodes with a new one in place of the lost one, fewer, more; whichever
// was lost, and whatever ranks the others get.
TEST(ReplicaTest, ALostNodeCostsTheStepsSinceTheLastReplica) {  // I17, I20
  for (int lost = 0; lost < 3; ++lost) {
    const std::vector<int> others = {lost == 0 ? 1 : 0, lost == 2 ? 1 : 2};
    const std::vector<std::pair<std::vector<int>, int>> shapes = {
        {{-1, others[0], others[1]}, 2},      // a replacement, as node 0
        {{others[1], -1, others[0]}, 2},      // as node 1, the others swapped
        {{others[0], others[1]}, 3},          // two nodes, as many ranks
        {{others[1], others[0]}, 2},          // fewer ranks
        {{others[0], -1, -1, others[1]}, 2},  // more of both
        {{others[0], -1, others[1], -1, -1, -1}, 1}};
    for (const auto& [from, workers] : shapes) {
      FirstLife first(MakeScenario(3, 2), 5, lost);
      ASSERT_EQ(first.held_step, 4) << "bounded lag";
      const Result result = Reopen(
          first, first.Next(static_cast<int>(from.size()), workers), from);
      EXPECT_TRUE(result.passed())
          << "lost " << lost << ", on " << from.size() << "x" << workers << "\n"
          << Violations(result);
      EXPECT_FALSE(result.weights.empty());
    }
  }
}

// One node that is left holds both shards of two.
TEST(ReplicaTest, OneOfTwoGoesOnAlone) {  // I20
  FirstLife first(MakeScenario(2, 2), 6, 1);
  ASSERT_GT(first.held_step, 0);
  const Result result = Reopen(first, first.Next(1, 3), {0});
  EXPECT_TRUE(result.passed()) << Violations(result);
}

// The other one may go on too, for all that it knows: it needs a word.
TEST(ReplicaTest, TheOtherHalfWaitsForTheOperator) {  // I19, I20
  FirstLife first(MakeScenario(2, 2), 6, 0);
  ASSERT_GT(first.held_step, 0);
  Cluster next(first.Next(1, 3), 77, kernels::Reference(), first.cluster.get(),
               {1});
  next.Start();
  next.clock().RunFor(absl::Seconds(40));
  daemon::Node& node = next.node(0);
  ASSERT_NE(node.Find(kJobName), nullptr);
  EXPECT_THAT(
      node.Find(kJobName)->WaitingFor(),
      testing::HasSubstr("node 1 of the 2 that ran job \"job\" at step"));
  EXPECT_EQ(next.so_far().weights.size(), first.held_step);  // none is new
  EXPECT_EQ(node.AdoptJob("other").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(node.AdoptJob(kJobName), absl::OkStatus());
  const Result result = next.Finish();
  EXPECT_TRUE(result.passed()) << Violations(result);
  EXPECT_GT(result.weights.size(), first.held_step);
}

// Of two nodes, told by the one that does not decide too.
TEST(ReplicaTest, AllNodesSayWhatTheyWaitFor) {
  FirstLife first(MakeScenario(2, 1), 6, 0);
  Cluster next(first.Next(2, 1), 77, kernels::Reference(), first.cluster.get(),
               {-1, 1});
  next.Start();
  next.clock().RunFor(absl::Seconds(30));
  daemon::Node& other = next.node(1);
  ASSERT_NE(other.Find(kJobName), nullptr);
  EXPECT_THAT(other.Find(kJobName)->WaitingFor(),
              testing::HasSubstr("--adopt` to node 0"));
  const absl::Status status = other.AdoptJob(kJobName);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), testing::HasSubstr("the daemon of node 0"));
  EXPECT_EQ(next.node(0).AdoptJob(kJobName), absl::OkStatus());
  const Result result = next.Finish();
  EXPECT_TRUE(result.passed()) << Violations(result);
  EXPECT_EQ(next.node(0).AdoptJob(kJobName).code(),
            absl::StatusCode::kNotFound);
}

// Residuals, budgets, quantized and published weights: as in snapshots.
TEST(ReplicaTest, KeepsWhatPoliciesNeed) {  // I12, I20
  for (const char* exchange :
       {"zeropp override:*=int8", "delta4 override:*=int4",
        "zeropp override:*=int8 secondary_partition=none",
        "zeropp override:*=int4 gradients.error_feedback=true "
        "max_relative_error=0.01 metering.one_in=1",
        "delta4 override:*=int4 gradients.error_feedback=true"}) {
    Scenario scenario = MakeScenario(3, 1);
    scenario.exchange = exchange;
    FirstLife replaced(scenario, 7, 1);
    Result result = Reopen(replaced, replaced.Next(3, 1), {0, -1, 2});
    EXPECT_TRUE(result.passed()) << exchange << "\n" << Violations(result);
    FirstLife fewer(scenario, 7, 0);
    result = Reopen(fewer, fewer.Next(2, 2), {1, 2});
    EXPECT_TRUE(result.passed()) << exchange << "\n" << Violations(result);
  }
}

// Where no node keeps all weights: each part is in two places too.
TEST(ReplicaTest, OfWeightsThatAreNotResident) {  // I14, I20
  for (const char* groups : {"", " partition_nodes=2"}) {
    Scenario scenario = MakeScenario(4, 1);
    scenario.exchange = absl::StrCat("exact secondary_partition=none", groups);
    FirstLife replaced(scenario, 8, 3);
    Result result = Reopen(replaced, replaced.Next(4, 1), {0, 1, 2, -1});
    EXPECT_TRUE(result.passed()) << groups << "\n" << Violations(result);
    FirstLife fewer(scenario, 8, 0);
    Scenario next = fewer.Next(4, 2);
    next.exchange = "exact secondary_partition=none";
    result = Reopen(fewer, next, {1, 2, 3, -1});
    EXPECT_TRUE(result.passed()) << groups << "\n" << Violations(result);
  }
  // The control: two neighbours are lost.
  Scenario scenario = MakeScenario(4, 1);
  scenario.exchange = "exact secondary_partition=none";
  FirstLife first(scenario, 8, 3);
  EXPECT_FALSE(Reopen(first, first.Next(2, 2), {0, 1}).passed());
}

// In partition groups the copy is in the other group.
TEST(ReplicaTest, OfPartitionGroups) {  // I14, I20
  Scenario scenario = MakeScenario(4, 1);
  scenario.exchange = "exact partition_nodes=2";
  FirstLife first(scenario, 8, 3);
  Scenario next = first.Next(2, 2);
  const Result result = Reopen(first, next, {0, 2});
  // Without 1 and 3 half of the state is lost: both copies of it.
  EXPECT_FALSE(result.passed());
  FirstLife again(scenario, 8, 3);
  next = again.Next(2, 2);
  const Result whole = Reopen(again, next, {0, 1});
  // 2 holds what 0 stored, and 0 what 2 stored; 3's is with 1.
  EXPECT_TRUE(whole.passed()) << Violations(whole);
}

// A planned change of size loses no step, whichever node comes first.
TEST(ReplicaTest, APlannedChangeOfSizeLosesNothing) {  // I17, I20
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Scenario scenario = MakeScenario(2, 2);
    scenario.replica_every = 1000;  // the last one counts
    scenario.hold = absl::Minutes(10);
    FirstLife smaller(scenario, seed, -1);
    Result result = Reopen(smaller, smaller.Next(1, 3), {1}, seed);
    EXPECT_TRUE(result.passed()) << seed << "\n" << Violations(result);
    FirstLife larger(scenario, seed, -1);
    result = Reopen(larger, larger.Next(3, 1), {0, 1, -1}, seed);
    EXPECT_TRUE(result.passed()) << seed << "\n" << Violations(result);
    FirstLife swapped(scenario, seed, -1);
    result = Reopen(swapped, swapped.Next(2, 1), {1, 0}, seed);
    EXPECT_TRUE(result.passed()) << seed << "\n" << Violations(result);
  }
}

// A network that loses, repeats and reorders; another life each time.
TEST(ReplicaTest, SurvivesABadNetwork) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Scenario scenario = MakeScenario(3, 1);
    scenario.link.loss = 0.1;
    scenario.link.duplicate = 0.1;
    scenario.link.reorder = 0.1;
    FirstLife first(scenario, seed, static_cast<int>(seed % 3));
    ASSERT_GT(first.held_step, 0);
    std::vector<int> from = {0, 1, 2};
    from.erase(from.begin() + static_cast<int>(seed % 3));
    const Result result = Reopen(first, first.Next(2, 2), from, seed);
    EXPECT_TRUE(result.passed()) << seed << "\n" << Violations(result);
  }
}

// A damaged copy is noticed before it is used, and the other one is taken.
TEST(ReplicaTest, ADamagedCopyIsReplacedByTheOther) {  // I17
  for (const bool is_fetched : {false, true}) {
    FirstLife first(MakeScenario(3, 1), 9, 0);
    // Node 1 has shards 0 and 1, node 2 has 1 and 2.
    Damage(first.cluster->FindRemnant(is_fetched ? 2 : 1), first.held_step,
           snapshot::ShardName(1, 3));
    const Result result = Reopen(first, first.Next(2, 1), {1, 2});
    EXPECT_TRUE(result.passed()) << Violations(result);
  }
}

TEST(ReplicaTest, WithoutAGoodCopyItIsSaid) {
  FirstLife first(MakeScenario(3, 1), 9, 0);
  Damage(first.cluster->FindRemnant(1), first.held_step,
         snapshot::ShardName(0, 3));  // the only one
  Scenario next = first.Next(2, 1);
  next.expect_failure = "no whole replica";
  const Result result = Reopen(first, next, {1, 2});
  EXPECT_TRUE(result.passed()) << Violations(result);
}

// The same bit, and checksums that were made for it: as if none were looked at.
void DamageUnseen(HeldFiles* files, int64_t step, int shard, int num_shards) {
  const std::string path =
      absl::StrCat(kJobName, "/", snapshot::StepName(step), "/");
  const auto file = files->Find(path + snapshot::ShardName(shard, num_shards));
  const auto text_file = files->Find(path + snapshot::kManifestName);
  ASSERT_NE(file, nullptr);
  const auto view = [](std::span<std::byte> bytes) {
    return std::string_view(reinterpret_cast<const char*>(bytes.data()),
                            bytes.size());
  };
  uint64_t length = 0;
  std::memcpy(&length, file->bytes().data(), sizeof(length));
  auto header = snapshot::ParseHeader(
      view(file->bytes().first(sizeof(length) + length)), file->size_bytes());
  ASSERT_TRUE(header.ok()) << header.status();
  const snapshot::Section& section = header->sections[0];  // of a master
  ASSERT_GT(section.size_bytes(), 0u);
  const auto data = file->bytes().subspan(header->data_begin + section.begin,
                                          section.size_bytes());
  data[6] ^= std::byte{16};
  header->metadata[snapshot::kChecksumsKey].replace(
      0, 16, snapshot::ToHex16(snapshot::Checksum(view(data))));
  const std::string bytes =
      snapshot::MakeHeader(header->sections, header->metadata);
  ASSERT_EQ(bytes.size(), header->data_begin);
  std::ranges::copy(std::as_bytes(std::span(bytes)), file->bytes().begin());
  auto manifest = snapshot::ParseManifest(view(text_file->bytes()));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  manifest->files[shard].header_checksum = snapshot::Checksum(bytes);
  const std::string text = snapshot::ToText(*manifest);
  ASSERT_EQ(text.size(), text_file->size_bytes());
  std::ranges::copy(std::as_bytes(std::span(text)), text_file->bytes().begin());
}

// The control: a replica that is used unverified is noticed by its bits, and so
// is one that is none.
TEST(ReplicaTest, NoticesAReplicaThatIsNotTheState) {
  FirstLife damaged(MakeScenario(2, 1), 9, 0);
  DamageUnseen(damaged.cluster->FindRemnant(1), damaged.held_step, 0, 2);
  Scenario next = damaged.Next(1, 2);
  next.adopt_after = absl::Seconds(2);
  const Result unverified = Reopen(damaged, next, {1});
  ASSERT_FALSE(unverified.passed());
  EXPECT_THAT(unverified.violations,
              testing::Contains(testing::HasSubstr("I25")));
  FirstLife first(MakeScenario(2, 1), 9, 0);
  next = first.Next(1, 2);
  next.adopt_after = absl::Seconds(2);
  next.groups[0].lr = 0.02;  // the reference of another run
  EXPECT_FALSE(Reopen(first, next, {1}).passed());
  FirstLife none(MakeScenario(2, 1), 9, 0);
  next = none.Next(1, 2);
  next.expect_failure = "rank 0 must give";
  const Result result = Reopen(none, next, {-1});  // it holds nothing
  EXPECT_TRUE(result.passed()) << Violations(result);
}

// I28: what nobody goes on from is freed after the job's hold.
TEST(ReplicaTest, AreFreedAfterTheHold) {
  Scenario scenario = MakeScenario(3, 1);
  scenario.hold = absl::Minutes(2);
  FirstLife first(scenario, 4, 2);
  ASSERT_GT(first.cluster->node(0).held_bytes(), 0u);
  first.cluster->clock().RunFor(absl::Minutes(1));
  EXPECT_GT(first.cluster->node(0).held_bytes(), 0u);
  first.cluster->clock().RunFor(absl::Minutes(2));
  EXPECT_EQ(first.cluster->node(0).held_bytes(), 0u);
  EXPECT_EQ(first.cluster->node(1).held_bytes(), 0u);
}

// Never at once, and neither is left out for the other.
TEST(ReplicaTest, AreMadeBesideSnapshots) {  // I18
  Scenario scenario = MakeScenario(3, 1);
  MemoryFileSystem files;
  scenario.snapshot_every = 3;
  scenario.steps = 9;
  for (const int64_t step : {3, 5, 8}) {
    Add(Fault::Kind::kSlow, step, 0, &scenario);
  }
  Cluster cluster(scenario, 3, kernels::Reference(), nullptr, &files);
  cluster.Start();
  const daemon::JobRuntime* job = nullptr;
  for (int i = 0; i < 2'000'000; ++i) {
    ASSERT_TRUE(cluster.clock().Step());
    job = cluster.node(1).Find(kJobName);
    if (job != nullptr && job->snapshots() != nullptr &&
        job->snapshots()->status().replicas.last_step > 0) {
      break;
    }
  }
  ASSERT_NE(job, nullptr);
  EXPECT_GT(job->snapshots()->status().replicas.bytes_received, 0u);
  cluster.clock().RunFor(absl::Minutes(5));
  EXPECT_TRUE(cluster.so_far().passed()) << Violations(cluster.so_far());
  EXPECT_TRUE(snapshot::FindNewest(files, kJobName)->has_value());
}

// Links that are lost while a replica is on its way, or a daemon that is
// replaced and has lost what it held: the next ones are whole again, within the
// same memory.
TEST(ReplicaTest, AreMadeAgainAfterLinksWereLost) {  // I17, I23
  for (const Fault::Kind kind :
       {Fault::Kind::kPartition, Fault::Kind::kRestart}) {
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      Scenario scenario = MakeScenario(3, 1);
      scenario.steps = 14;
      scenario.replica_every = 1;
      scenario.has_keepers = true;
      const bool is_cut = kind == Fault::Kind::kPartition;
      for (const int64_t step : {4, 7}) {
        Add(kind, step, static_cast<int>((seed + step) % 3), &scenario);
        // Longer than a silence that is put up with.
        scenario.faults.back().back_after =
            is_cut ? absl::Seconds(60) : absl::Milliseconds(100 * seed);
      }
      // So that the last ones can be whole before the job ends.
      for (const int64_t step : {11, 12, 13}) {
        Add(Fault::Kind::kSlow, step, 1, &scenario);
        scenario.faults.back().back_after = absl::Seconds(3);
      }
      Cluster cluster(scenario, seed, kernels::Reference());
      cluster.Start();
      bool is_late = false;
      while (!is_late && cluster.clock().Step()) {
        const daemon::JobRuntime* const job =
            cluster.has_node(0) ? cluster.node(0).Find(kJobName) : nullptr;
        is_late = job != nullptr && job->engine().open_step() == Step(13);
      }
      cluster.clock().RunFor(absl::Seconds(1));
      for (int n = 0; n < 3; ++n) {
        const daemon::JobRuntime* const job = cluster.node(n).Find(kJobName);
        ASSERT_NE(job, nullptr) << "seed " << seed << ", node " << n << " "
                                << Violations(cluster.Finish());
        const snapshot::ReplicaStatus status =
            job->snapshots()->status().replicas;
        EXPECT_EQ(status.last_step, 12)
            << "seed " << seed << ", node " << n << ": " << status.last_error;
        EXPECT_GT(status.held_bytes, 0u);
      }
      const Result result = cluster.Finish();
      EXPECT_TRUE(result.passed()) << "seed " << seed << "\n"
                                   << Violations(result);
    }
  }
}

}  // namespace
}  // namespace ballast::sim
