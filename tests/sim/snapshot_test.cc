// Whole jobs that keep snapshots, on a disk that fails, in a world that ends at
// any moment, and that go on from what is stored on other nodes: the bits are
// those of the run that was never interrupted.
#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference.h"
#include "server/base/random.h"
#include "server/daemon/job_runtime.h"
#include "server/optimizer/residuals.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/export.h"
#include "server/snapshot/files/life.h"
#include "server/snapshot/files/memory_file_system.h"
#include "server/snapshot/files/snapshot_reader.h"
#include "tests/sim/cluster.h"
#include "tests/sim/scenario.h"

namespace ballast::sim {
namespace {

using snapshot::MemoryFileSystem;

Scenario MakeScenario(int nodes, int workers) {
  Scenario scenario;
  scenario.name = "snapshots";
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
  scenario.steps = 6;
  scenario.snapshot_every = 2;
  scenario.overlap = true;
  return scenario;
}

Result RunJob(const Scenario& scenario, uint64_t seed,
              MemoryFileSystem* files) {
  return Cluster(scenario, seed, kernels::Reference(), nullptr, files).Run();
}

std::string Violations(const Result& result) {
  std::string text;
  for (const std::string& violation : result.violations) {
    absl::StrAppend(&text, violation, "\n");
  }
  return text;
}

int64_t NewestStep(MemoryFileSystem& files) {
  const auto newest = snapshot::FindNewest(files, kJobName);
  EXPECT_TRUE(newest.ok()) << newest.status();
  if (!newest.ok() || !newest->has_value()) return 0;
  return (*newest)->step;
}

int CountTemporary(MemoryFileSystem& files) {
  const auto entries = files.List(kJobName);
  int count = 0;
  if (!entries.ok()) return count;
  for (const auto& entry : *entries) {
    count += entry.name[0] == '.' && entry.name != snapshot::kLifeName;
  }
  return count;
}

// Goes on from what is stored, to `steps`.
void GoOn(Scenario scenario, int64_t steps, uint64_t seed,
          MemoryFileSystem* files, const std::string& what) {
  scenario.first_version = NewestStep(*files);
  scenario.steps = steps;
  const Result result = RunJob(scenario, seed, files);
  EXPECT_TRUE(result.passed()) << what << "\n" << Violations(result);
}

std::string StateOf(MemoryFileSystem& files, int64_t step) {
  auto reader = snapshot::SnapshotReader::Open(
      files, absl::StrCat(kJobName, "/", snapshot::StepName(step)));
  EXPECT_TRUE(reader.ok()) << reader.status();
  if (!reader.ok()) return "";
  MemoryFileSystem out;
  EXPECT_TRUE(snapshot::ExportSnapshot(
                  **reader, snapshot::ExportContent::kState, out, "state")
                  .ok());
  return *out.Contents("state");
}

TEST(SnapshotTest, IsTheStateOfItsStepOnAnyNodes) {  // I17, I18, I20
  std::vector<std::string> states;
  for (const auto& [nodes, workers] :
       {std::pair(3, 2), std::pair(1, 6), std::pair(6, 1), std::pair(2, 3)}) {
    MemoryFileSystem files;
    const Result result = RunJob(MakeScenario(nodes, workers), 5, &files);
    ASSERT_TRUE(result.passed()) << Violations(result);
    // One that is due while another is being written is left out.
    ASSERT_EQ(NewestStep(files), 6);
    const auto entries = snapshot::ListSnapshots(files, kJobName);
    ASSERT_EQ(entries->size(), 2u);
    states.push_back(StateOf(files, 6));
    EXPECT_EQ(states.back(), states.front()) << nodes << "x" << workers;
    EXPECT_NE(StateOf(files, entries->front().step), states.front());
    // Other nodes go on from it, and end where those would have.
    GoOn(MakeScenario(2, 3), 9, 6, &files, "on 2x3");
    GoOn(MakeScenario(6, 1), 12, 7, &files, "on 6x1");
    GoOn(MakeScenario(1, 6), 14, 8, &files, "on 1x6");
  }
}

// Partition groups store every shard once, in turns; other groups, and none, go
// on from it.
TEST(SnapshotTest, OfPartitionGroupsIsTheSame) {  // I14, I17, I18, I20
  MemoryFileSystem plain;
  ASSERT_TRUE(RunJob(MakeScenario(4, 1), 5, &plain).passed());
  Scenario scenario = MakeScenario(4, 1);
  scenario.exchange = "exact partition_nodes=2";
  MemoryFileSystem files;
  const Result result = RunJob(scenario, 5, &files);
  ASSERT_TRUE(result.passed()) << Violations(result);
  ASSERT_EQ(NewestStep(files), 6);
  EXPECT_EQ(StateOf(files, 6), StateOf(plain, 6));
  GoOn(scenario, 9, 6, &files, "in groups of two");
  scenario.exchange = "exact partition_nodes=1";
  GoOn(scenario, 12, 7, &files, "each node for itself");
  GoOn(MakeScenario(2, 2), 14, 8, &files, "in one group of two nodes");
}

TEST(SnapshotTest, OfPartitionGroupsKeepsQuantizedWeights) {  // I20
  MemoryFileSystem files;
  Scenario scenario = MakeScenario(4, 1);
  scenario.exchange = "zeropp override:*=int8 partition_nodes=2";
  const Result result = RunJob(scenario, 5, &files);
  ASSERT_TRUE(result.passed()) << Violations(result);
  GoOn(scenario, 9, 6, &files, "in the same groups");
}

// Published weights that are no cast of the masters come from the files too.
TEST(SnapshotTest, KeepsQuantizedWeights) {  // I20
  for (const char* exchange :
       {"zeropp override:*=int8", "zeropp override:mlp=none"}) {
    MemoryFileSystem files;
    Scenario scenario = MakeScenario(2, 2);
    scenario.exchange = exchange;
    const Result result = RunJob(scenario, 5, &files);
    ASSERT_TRUE(result.passed()) << exchange << "\n" << Violations(result);
    GoOn(scenario, 9, 6, &files, exchange);
  }
}

// Where no node keeps all weights each stores its own parts: the same state,
// with which others go on, and those that keep all of them.
TEST(SnapshotTest, OfWeightsThatAreNotResidentIsTheSame) {  // I14, I17, I20
  MemoryFileSystem plain;
  ASSERT_TRUE(RunJob(MakeScenario(3, 2), 5, &plain).passed());
  for (const auto& [nodes, workers, groups] :
       {std::tuple(3, 2, ""), std::tuple(1, 6, ""),
        std::tuple(6, 1, " partition_nodes=2")}) {
    MemoryFileSystem files;
    Scenario scenario = MakeScenario(nodes, workers);
    scenario.exchange = absl::StrCat("exact secondary_partition=none", groups);
    const Result result = RunJob(scenario, 5, &files);
    ASSERT_TRUE(result.passed()) << Violations(result);
    ASSERT_EQ(NewestStep(files), 6);
    EXPECT_EQ(StateOf(files, 6), StateOf(plain, 6)) << nodes << groups;
    scenario = MakeScenario(2, 3);
    scenario.exchange = "exact secondary_partition=none";
    GoOn(scenario, 9, 6, &files, "on 2x3");
    scenario.nodes = 6;
    scenario.workers = 1;
    GoOn(scenario, 12, 7, &files, "on 6x1");
    GoOn(MakeScenario(1, 6), 14, 8, &files, "on 1x6, resident");
    GoOn(scenario, 16, 9, &files, "on 6x1 again");
  }
}

// What all decode is stored, and shown until the first update encodes anew.
TEST(SnapshotTest, KeepsEncodedWeightsThatAreNotResident) {  // I20, I25
  for (const char* exchange :
       {"zeropp override:*=int8", "zeropp override:mlp=none",
        "zeropp override:*=int8 partition_nodes=2"}) {
    MemoryFileSystem files;
    Scenario scenario = MakeScenario(4, 1);
    scenario.exchange = absl::StrCat(exchange, " secondary_partition=none");
    const Result result = RunJob(scenario, 5, &files);
    ASSERT_TRUE(result.passed()) << exchange << "\n" << Violations(result);
    GoOn(scenario, 9, 6, &files, exchange);
    // Where each node keeps all weights they are the same.
    scenario.exchange = exchange;
    GoOn(scenario, 12, 7, &files, "resident");
    scenario.exchange = absl::StrCat(exchange, " secondary_partition=none");
    GoOn(scenario, 14, 8, &files, "back");
  }
}

Scenario WithFeedback() {
  Scenario scenario = MakeScenario(2, 2);
  scenario.exchange =
      "zeropp override:*=int4 gradients.error_feedback=true "
      "max_relative_error=0.01 metering.one_in=1";
  scenario.steps = 9;
  return scenario;
}

// What error feedback owes, and what a budget has widened.
TEST(SnapshotTest, KeepsResidualsAndBudget) {  // I20
  MemoryFileSystem files;
  const Result result = RunJob(WithFeedback(), 5, &files);
  ASSERT_TRUE(result.passed()) << Violations(result);
  ASSERT_GE(NewestStep(files), 4);
  const auto manifest = snapshot::ReadManifest(
      files,
      absl::StrCat(kJobName, "/", snapshot::StepName(NewestStep(files))));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_FALSE(manifest->budget.empty());
  GoOn(WithFeedback(), 14, 6, &files, "feedback and budget");
}

// The control: residuals that are not restored are noticed.
TEST(SnapshotTest, NoticesResidualsThatAreLost) {
  MemoryFileSystem files;
  Scenario scenario = WithFeedback();
  ASSERT_TRUE(RunJob(scenario, 5, &files).passed());
  scenario.first_version = NewestStep(files);
  scenario.steps = scenario.first_version + 2;
  Cluster cluster(scenario, 6, kernels::Reference(), nullptr, &files);
  cluster.Start();
  const auto residuals = [&](int node) -> optimizer::Residuals* {
    const daemon::JobRuntime* const job = cluster.node(node).Find(kJobName);
    return job == nullptr ? nullptr : job->residuals();
  };
  const auto norm = [&](int node) {
    double sum = 0;
    if (residuals(node) == nullptr) return sum;
    for (int v = 0; v < 2; ++v) {
      for (const float value : residuals(node)->version(v)) {
        sum += std::fabs(value);
      }
    }
    return sum;
  };
  while (norm(1) == 0) ASSERT_TRUE(cluster.clock().Step());
  for (int v = 0; v < 2; ++v) {
    for (float& value : residuals(1)->version(v)) value = 0;
  }
  cluster.clock().RunFor(absl::Minutes(5));
  EXPECT_FALSE(cluster.so_far().passed());
}

TEST(SnapshotTest, SurvivesFaultsOfTraining) {
  Scenario scenario = MakeScenario(2, 2);
  scenario.link.loss = 0.05;
  scenario.link.duplicate = 0.05;
  scenario.steps = 8;
  const auto add = [&](Fault::Kind kind, int64_t step, int where) {
    Fault& fault = scenario.faults.emplace_back();
    fault.kind = kind;
    fault.step = step;
    fault.where = where;
    return &fault;
  };
  add(Fault::Kind::kCrash, 3, 1)->back_after = absl::Milliseconds(50);
  add(Fault::Kind::kNan, 4, 2);
  add(Fault::Kind::kValue, 5, 3)->value = 0.5;
  add(Fault::Kind::kSlow, 6, 0)->back_after = absl::Milliseconds(30);
  int num_later = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    MemoryFileSystem files;
    const Result result = RunJob(scenario, seed, &files);
    EXPECT_TRUE(result.passed()) << seed << "\n" << Violations(result);
    EXPECT_EQ(result.faults, 4);
    const int64_t step = NewestStep(files);
    // A lost frame is repeated after longer than the rest of the run.
    EXPECT_GE(step, 2);
    num_later += step >= 4;
    Scenario next = MakeScenario(4, 1);
    next.faults = scenario.faults;  // the reference model knows of them
    next.faults[2].step = 100;
    GoOn(next, 11, seed, &files, absl::StrCat("seed ", seed));
  }
  EXPECT_GE(num_later, 5);
}

// The power fails in the middle of it; the machines come again.
TEST(SnapshotTest, GoesOnFromWhateverACrashLeft) {  // I20, I27
  int torn = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    MemoryFileSystem files;
    base::SeededRandom random(seed);
    {
      Cluster cluster(MakeScenario(2, 2), seed, kernels::Reference(), nullptr,
                      &files);
      cluster.Start();
      const int64_t changes = 3 + static_cast<int64_t>(random.Below(40));
      for (int i = 0; i < 200'000 && files.changes() < changes; ++i) {
        if (!cluster.clock().Step()) break;
      }
      files.Crash(&random);
    }
    torn += CountTemporary(files);
    GoOn(MakeScenario(1, 4), 8, seed, &files, absl::StrCat("seed ", seed));
    // I28: nothing of the crash is left.
    EXPECT_EQ(CountTemporary(files), 0) << seed;
  }
  EXPECT_GT(torn, 5);
}

TEST(SnapshotTest, TrainingIsUnharmedByItsDisk) {
  int64_t changes = 0;
  {
    MemoryFileSystem files;
    ASSERT_TRUE(RunJob(MakeScenario(2, 1), 1, &files).passed());
    changes = files.changes();
  }
  for (int64_t at = 0; at <= changes; at += 3) {
    for (const int64_t failures : {int64_t{1}, INT64_MAX}) {
      MemoryFileSystem files;
      files.FailAfter(at, failures);
      const Result result = RunJob(MakeScenario(2, 1), 1, &files);
      EXPECT_TRUE(result.passed()) << at << "\n" << Violations(result);
    }
  }
  for (const uint64_t capacity : {0u, 1000u, 200'000u, 400'000u}) {
    MemoryFileSystem files;
    files.set_capacity(capacity);
    const Result result = RunJob(MakeScenario(2, 1), 1, &files);
    EXPECT_TRUE(result.passed()) << capacity << "\n" << Violations(result);
    EXPECT_EQ(NewestStep(files), capacity < 300'000 ? 0 : NewestStep(files));
  }
  MemoryFileSystem files;
  files.set_read_only(true);
  EXPECT_TRUE(RunJob(MakeScenario(2, 1), 1, &files).passed());
}

// What it began from is no matter any more when its nodes meet again.
TEST(SnapshotTest, AJobThatWentOnOutlivesItsDaemons) {  // I20, I23
  MemoryFileSystem files;
  Scenario scenario = MakeScenario(3, 1);
  ASSERT_TRUE(RunJob(scenario, 1, &files).passed());
  scenario.has_keepers = true;
  for (const int node : {0, 2}) {
    Fault& fault = scenario.faults.emplace_back();
    fault.kind = Fault::Kind::kRestart;
    fault.step = 8 + node;
    fault.where = node;
  }
  GoOn(scenario, 12, 2, &files, "two daemons are replaced");
}

// Daemons are replaced before the first update, while what was stored is shown,
// and after it.
TEST(SnapshotTest, StoredPartsOfWeightsOutliveDaemons) {  // I20
  for (const char* exchange : {"exact", "zeropp override:*=int8"}) {
    for (const int first : {7, 8}) {
      MemoryFileSystem files;
      Scenario scenario = MakeScenario(3, 1);
      scenario.exchange = absl::StrCat(exchange, " secondary_partition=none");
      ASSERT_TRUE(RunJob(scenario, 1, &files).passed());
      scenario.has_keepers = true;
      for (const int node : {0, 2}) {
        Fault& fault = scenario.faults.emplace_back();
        fault.kind = Fault::Kind::kRestart;
        fault.step = first + node;
        fault.where = node;
      }
      GoOn(scenario, 12, 2, &files, exchange);
    }
  }
}

// Nobody replaces a worker: what was trained is not lost with the job.
TEST(SnapshotTest, IsWhatAHeldJobEndsWith) {  // I17, I20
  for (const int nodes : {1, 3}) {
    Scenario scenario = MakeScenario(nodes, 2);
    scenario.snapshot_every = 100;
    scenario.hold = absl::Seconds(20);
    Fault& fault = scenario.faults.emplace_back();
    fault.kind = Fault::Kind::kCrash;
    fault.step = 4;
    fault.where = 2 * nodes - 1;
    scenario.expect_failure = "was held as long";
    MemoryFileSystem files;
    const Result result = RunJob(scenario, 3, &files);
    EXPECT_TRUE(result.passed()) << Violations(result);
    EXPECT_EQ(NewestStep(files), 3);
    scenario.faults.clear();
    scenario.expect_failure.clear();
    scenario.nodes = 2;
    scenario.workers = nodes;
    GoOn(scenario, 6, 4, &files, "on two nodes");
    // It is held until the disk takes it.
    MemoryFileSystem full;
    full.FailAfter(0, 3);
    scenario.nodes = nodes;
    scenario.workers = 2;
    scenario.first_version = 0;
    scenario.faults.push_back({});
    scenario.faults[0].kind = Fault::Kind::kCrash;
    scenario.faults[0].step = 4;
    scenario.expect_failure = "was held as long";
    const Result later = RunJob(scenario, 3, &full);
    EXPECT_TRUE(later.passed()) << Violations(later);
    EXPECT_EQ(full.failures(), 3);
    EXPECT_EQ(NewestStep(full), 3);
  }
}

// The control: a stored state that is not the job's is noticed.
TEST(SnapshotTest, NoticesAnotherState) {
  MemoryFileSystem files;
  Scenario scenario = MakeScenario(2, 1);
  ASSERT_TRUE(RunJob(scenario, 1, &files).passed());
  scenario.groups[0].lr = 0.02;  // the reference of another run
  scenario.first_version = 6;
  scenario.steps = 8;
  EXPECT_FALSE(RunJob(scenario, 1, &files).passed());
}

TEST(SnapshotTest, RefusesADamagedOneAndNodesThatDiffer) {
  MemoryFileSystem files;
  Scenario scenario = MakeScenario(2, 1);
  ASSERT_TRUE(RunJob(scenario, 1, &files).passed());
  scenario.first_version = 6;
  std::string& shard = *files.Contents(absl::StrCat(
      kJobName, "/", snapshot::StepName(6), "/", snapshot::ShardName(1, 2)));
  shard[shard.size() - 100] ^= 4;
  scenario.expect_failure = "checksum";
  const Result result = RunJob(scenario, 1, &files);
  EXPECT_TRUE(result.passed()) << Violations(result);
}

}  // namespace
}  // namespace ballast::sim
