// The product broken on purpose, in each of the ways that would lose or double
// something: what always looks on in these simulations must notice. Unbroken,
// the same lives pass.
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference.h"
#include "server/base/failpoint.h"
#include "server/base/random.h"
#include "server/base/status_matchers.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/export.h"
#include "server/snapshot/files/held_files.h"
#include "server/snapshot/files/manifest.h"
#include "server/snapshot/files/memory_file_system.h"
#include "server/snapshot/files/snapshot_reader.h"
#include "tests/sim/cluster.h"
#include "tests/sim/random_schedule.h"
#include "tests/sim/runner.h"
#include "tests/sim/scenario.h"

namespace ballast::sim {
namespace {

using base::IsOk;

struct Breakage {
  const char* name;      // of BALLAST_SABOTAGED
  const char* scenario;  // and what happens to the job besides
  const char* death;     // a failpoint, if there must be one
  const char* found;     // a part of what is said
};

constexpr char kOneNode[] = R"(
nodes 1
workers 2
tensor wte float32 3x2049
tensor head bfloat16 5001
optimizer adamw lr 0.01
bucket_bytes 8192
steps 6
hold 10m
)";

constexpr Breakage kBreakages[] = {
    {"optimizer.no_undo", "", "optimizer.chunk.updated=kill@7",
     "is not the reference model's"},
    {"engine.update_before_commit", "at step 3 lr rank 1 0.5\n", "",
     "is not the reference model's"},
    {"engine.publish_before_complete", "", "", "and reads something else"},
    {"daemon.outcome_not_recorded", "", "engine.recorded=kill@3",
     "what was recorded of the job contradicts itself"},
    {"daemon.cursor_not_restored",
     "at step 4 slow rank 0 back 1s\nat step 4 crash rank 1 back 20ms\n",
     "session.vacated=kill@1", "got cursor \"\""},
    {"collective.delta_unverified",
     "nodes 2\nexchange delta4 override:*=int4\nbucket_bytes 32768\n"
     "at step 3 corrupt node 0 owner\n",
     "", "is not the reference model's"},
    // Node 1 has no first weights yet, and nothing of the job when it comes
    // back, but node 0's workers have been told that it has begun.
    {"daemon.starts_alone", "nodes 2\n", "daemon.weights_there=kill@2",
     "part of the job's state, which is lost"},
    // The next daemon takes what is wanted for what is held: frozen ones, whose
    // version is known.
    {"session.wanted_is_held",
     "nodes 2\nexchange exact secondary_partition=none\nunits_at_once 8\n"
     "tensor base float32 9x2049 frozen\n",
     "daemon.unit_held=kill@80", "and reads something else"},
    // Or serves raw initial values in place of those that were encoded.
    {"collective.codes_forgotten",
     "nodes 2\nexchange zeropp secondary_partition=none override:*=int8\n",
     "daemon.unit_held=kill@90", " cannot gather bucket "},
    // An owner dies in step 2, between runs of a chunk of three or after them:
    // half of a difference is applied twice, or all of it.
    {"collective.delta_in_place",
     "nodes 2\nexchange delta4 override:*=int4\nbucket_bytes 32768\n"
     "chunk_bytes 65536\ntensor bias float32 700\ntensor gain float32 900\n",
     "collective.delta_written=kill@16", "is not the reference model's"},
};

std::string Violations(const Breakage& breakage, bool is_broken,
                       uint64_t seed) {
  auto scenario = ParseScenario(
      breakage.name, absl::StrCat(kOneNode, std::string(breakage.scenario)));
  EXPECT_TRUE(scenario.ok()) << scenario.status();
  scenario->has_keepers = scenario->nodes == 1 || breakage.death[0] != '\0';
  EXPECT_THAT(base::ConfigureFailpoints(
                  absl::StrCat(breakage.death, ";",
                               is_broken ? breakage.name : "nothing", "=break"),
                  seed),
              IsOk());
  Cluster cluster(*scenario, seed, kernels::Reference());
  cluster.DieAtFailpoints(absl::Milliseconds(5));
  const Result result = cluster.Run();
  EXPECT_THAT(base::ConfigureFailpoints("", 0), IsOk());
  EXPECT_EQ(cluster.deaths(), breakage.death[0] == '\0' ? 0 : 1)
      << breakage.name;
  return absl::StrJoin(result.violations, "\n");
}

TEST(NegativeTest, EachBreakageIsFoundAndItsLifeUnbrokenPasses) {
  for (const Breakage& breakage : kBreakages) {
    int found = 0;
    std::string said;
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      EXPECT_EQ(Violations(breakage, /*is_broken=*/false, seed), "")
          << breakage.name << " seed " << seed;
      const std::string violations =
          Violations(breakage, /*is_broken=*/true, seed);
      found += absl::StrContains(violations, breakage.found);
      if (said.empty()) said = violations.substr(0, violations.find('\n'));
    }
    std::cout << breakage.name << ": found in " << found
              << " of 10 lives: " << said << "\n";
    EXPECT_EQ(found, 10) << breakage.name << ": " << said;
  }
}

// What no node reads before its vote is healed after the commit.
TEST(NegativeTest, WeightsThatAreNotVerifiedAreHealedLate) {
  const auto scenario = ParseScenario(
      "verify", absl::StrCat(kOneNode,
                             "nodes 2\nexchange delta4 override:*=int4\n"
                             "bucket_bytes 4194304\n"
                             "at step 3 corrupt node 0 owner early\n"
                             "at step 4 corrupt node 1 member early\n"));
  ASSERT_THAT(scenario.status(), IsOk());
  for (const bool is_broken : {false, true}) {
    EXPECT_THAT(
        base::ConfigureFailpoints(
            is_broken ? "collective.published_unverified=break" : "", 1),
        IsOk());
    const Result result = Cluster(*scenario, 1, kernels::Reference()).Run();
    EXPECT_EQ(absl::StrJoin(result.violations, "\n"), "");
    EXPECT_EQ(result.heals, 2);
    EXPECT_EQ(result.early_heals, is_broken ? 0 : 2);
  }
  EXPECT_THAT(base::ConfigureFailpoints("", 0), IsOk());
}

// What a snapshot owes to the steps after it.
std::string GoOnFromSnapshot(bool is_broken) {
  auto scenario = ParseScenario("residuals", R"(
nodes 2
workers 2
exchange zeropp override:*=int4 gradients.error_feedback=true
tensor wte float32 3x5001
tensor head bfloat16 9001
optimizer adamw lr 0.01
steps 4
)");
  EXPECT_TRUE(scenario.ok()) << scenario.status();
  scenario->snapshot_every = 2;
  snapshot::MemoryFileSystem files;
  const auto run = [&](uint64_t seed) {
    return absl::StrJoin(
        Cluster(*scenario, seed, kernels::Reference(), nullptr, &files)
            .Run()
            .violations,
        "\n");
  };
  EXPECT_EQ(run(1), "");
  const auto newest = snapshot::FindNewest(files, kJobName);
  EXPECT_TRUE(newest.ok() && newest->has_value()) << newest.status();
  scenario->first_version = (*newest)->step;
  scenario->steps = scenario->first_version + 3;
  if (is_broken) {
    EXPECT_THAT(
        base::ConfigureFailpoints("snapshot.residuals_not_restored=break", 1),
        IsOk());
  }
  const std::string violations = run(2);
  EXPECT_THAT(base::ConfigureFailpoints("", 0), IsOk());
  return violations;
}

TEST(NegativeTest, ResidualsThatAreNotRestoredAreFound) {
  EXPECT_EQ(GoOnFromSnapshot(/*is_broken=*/false), "");
  const std::string said = GoOnFromSnapshot(/*is_broken=*/true);
  std::cout << "snapshot.residuals_not_restored: "
            << said.substr(0, said.find('\n')) << "\n";
  EXPECT_TRUE(absl::StrContains(said, "is not the reference model's"));
}

// A daemon is replaced while its job still shows what was stored of the
// weights: the next one must not take it for encoded.
std::string RestartAfterLoad(bool is_broken) {
  auto scenario = ParseScenario("loaded", R"(
nodes 2
exchange zeropp override:*=int8 secondary_partition=none
tensor wte float32 3x5001
tensor head bfloat16 9001
optimizer adamw lr 0.01
steps 4
snapshot_every 2
hold 10m
)");
  EXPECT_TRUE(scenario.ok()) << scenario.status();
  snapshot::MemoryFileSystem files;
  const auto run = [&](uint64_t seed) {
    return absl::StrJoin(
        Cluster(*scenario, seed, kernels::Reference(), nullptr, &files)
            .Run()
            .violations,
        "\n");
  };
  EXPECT_EQ(run(1), "");
  const auto newest = snapshot::FindNewest(files, kJobName);
  EXPECT_TRUE(newest.ok() && newest->has_value()) << newest.status();
  scenario->first_version = (*newest)->step;
  scenario->steps = scenario->first_version + 3;
  scenario->has_keepers = true;
  const auto add = [&](Fault::Kind kind, int where, absl::Duration back) {
    Fault& fault = scenario->faults.emplace_back();
    fault.kind = kind;
    fault.step = scenario->first_version + 1;
    fault.where = where;
    fault.back_after = back;
  };
  // Its workers gather again before there is an update.
  add(Fault::Kind::kSlow, 0, absl::Seconds(3));
  add(Fault::Kind::kRestart, 1, absl::Milliseconds(5));
  add(Fault::Kind::kCrash, 0, absl::Milliseconds(20));
  if (is_broken) {
    EXPECT_THAT(
        base::ConfigureFailpoints("daemon.first_update_forgotten=break", 1),
        IsOk());
  }
  const std::string violations = run(2);
  EXPECT_THAT(base::ConfigureFailpoints("", 0), IsOk());
  return violations;
}

TEST(NegativeTest, StoredWeightsThatAreTakenForEncodedAreFound) {
  EXPECT_EQ(RestartAfterLoad(/*is_broken=*/false), "");
  const std::string said = RestartAfterLoad(/*is_broken=*/true);
  std::cout << "daemon.first_update_forgotten: "
            << said.substr(0, said.find('\n')) << "\n";
  EXPECT_FALSE(said.empty());
}

// A node is lost, and one of the two copies of a shard has a bit that changed.
std::string GoOnFromReplica(bool is_broken) {
  auto scenario = ParseScenario("replicas", R"(
nodes 3
tensor wte float32 3x5001
tensor head bfloat16 9001
optimizer adamw lr 0.01
steps 9
hold 10m
replica_every 2
relink 1s
at step 5 slow rank 0 back 3s
at step 7 kill node 0
expect node
)");
  EXPECT_TRUE(scenario.ok()) << scenario.status();
  Cluster first(*scenario, 3, kernels::Reference());
  EXPECT_EQ(absl::StrJoin(first.RunLife().violations, "\n"), "");
  const int64_t step = first.NewestHeldStep();
  const auto file = first.FindRemnant(1)->Find(absl::StrCat(
      kJobName, "/", snapshot::StepName(step), "/", snapshot::ShardName(1, 3)));
  if (file == nullptr) return "nothing is held";
  file->bytes()[file->size_bytes() / 2 + 2] ^= std::byte{16};
  Scenario next = *scenario;
  next.nodes = 2;
  next.first_version = step;
  next.steps = step + 3;
  next.earlier = {{step, 3, 1}};
  next.faults.clear();
  next.expect_failure.clear();
  if (is_broken) {
    EXPECT_THAT(base::ConfigureFailpoints("snapshot.unverified=break", 1),
                IsOk());
  }
  const Result result =
      Cluster(next, 4, kernels::Reference(), &first, {1, 2}).Run();
  EXPECT_THAT(base::ConfigureFailpoints("", 0), IsOk());
  return absl::StrJoin(result.violations, "\n");
}

TEST(NegativeTest, AReplicaThatIsUsedUnverifiedIsFound) {
  EXPECT_EQ(GoOnFromReplica(/*is_broken=*/false), "");
  const std::string said = GoOnFromReplica(/*is_broken=*/true);
  std::cout << "snapshot.unverified: " << said.substr(0, said.find('\n'))
            << "\n";
  EXPECT_TRUE(absl::StrContains(said, "I25")) << said;
}

// Two sets of daemons that know nothing of each other, and one directory. The
// second goes on from the first's snapshot while that one still trains, from
// then on with other values; what it saves is compared with what it saves
// where it is alone. What is wrong, in words.
std::string TwoLives(bool is_broken, int nodes, uint64_t seed) {
  auto scenario = ParseScenario("lives", absl::StrCat("nodes ", nodes, R"(
tensor wte float32 3x5001
tensor head bfloat16 9001
optimizer adamw lr 0.01
steps 8
)"));
  EXPECT_TRUE(scenario.ok()) << scenario.status();
  scenario->snapshot_every = 2;
  const auto newest = [](snapshot::MemoryFileSystem& files) {
    const auto entry = snapshot::FindNewest(files, kJobName);
    EXPECT_TRUE(entry.ok()) << entry.status();
    return entry.ok() && entry->has_value() ? (*entry)->step : int64_t{0};
  };
  const auto state = [](snapshot::MemoryFileSystem& files, int64_t step) {
    auto reader = snapshot::SnapshotReader::Open(
        files, absl::StrCat(kJobName, "/", snapshot::StepName(step)));
    snapshot::MemoryFileSystem out;
    if (!reader.ok() ||
        !snapshot::ExportSnapshot(**reader, snapshot::ExportContent::kState,
                                  out, "state")
             .ok()) {
      return absl::StrCat("none of step ", step);
    }
    return *out.Contents("state");
  };
  snapshot::MemoryFileSystem alone;
  EXPECT_EQ(
      absl::StrJoin(Cluster(*scenario, 1, kernels::Reference(), nullptr, &alone)
                        .Run()
                        .violations,
                    "\n"),
      "");
  if (is_broken) {
    EXPECT_THAT(base::ConfigureFailpoints("snapshot.life_unchecked=break", 1),
                IsOk());
  }
  snapshot::MemoryFileSystem files;
  Scenario other = *scenario;
  other.steps = 12;
  Fault& fault = other.faults.emplace_back();  // lineages that can be told
  fault.kind = Fault::Kind::kNan;
  fault.step = 3;
  fault.where = 0;
  Cluster first(other, seed, kernels::Reference(), nullptr, &files);
  first.Start();
  while (newest(files) < 2 && first.clock().Step()) {
  }
  scenario->first_version = 2;
  Cluster second(*scenario, seed + 1, kernels::Reference(), nullptr, &files);
  second.Start();
  // Its first snapshot claims the directory.
  while (newest(files) < 4 && second.clock().Step()) {
  }
  base::SeededRandom random(seed);
  std::string notice;
  const auto look = [&] {
    for (const v1::JobSummary& job : first.node(nodes - 1).Jobs()) {
      if (!job.notice().empty()) notice = job.notice();
    }
  };
  for (int turn = 0; turn < 300; ++turn) {
    Cluster& life = random.Below(2) == 0 ? first : second;
    life.clock().RunFor(absl::Microseconds(random.Below(1000)));
    look();
  }
  std::string wrong = absl::StrJoin(first.Finish().violations, "\n");
  absl::StrAppend(&wrong, absl::StrJoin(second.Finish().violations, "\n"));
  EXPECT_THAT(base::ConfigureFailpoints("", 0), IsOk());
  if (!absl::StrContains(notice, "another life of the job writes here")) {
    absl::StrAppend(&wrong, "the earlier life was told nothing\n");
  }
  if (newest(files) != 8) absl::StrAppend(&wrong, "the newest is not its\n");
  for (const int64_t step : {4, 6, 8}) {
    const std::string there = state(files, step);
    const std::string mine = state(alone, step);
    const bool are_kept =
        !there.starts_with("none") && !mine.starts_with("none");
    if (are_kept && there != mine) {
      absl::StrAppend(&wrong, "step ", step, " is the other lineage's\n");
    }
  }
  return wrong;
}

TEST(NegativeTest, TwoLivesInOneDirectoryAreFound) {
  int found = 0;
  std::string said;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const int nodes = seed % 2 == 0 ? 1 : 3;
    EXPECT_EQ(TwoLives(/*is_broken=*/false, nodes, seed), "") << seed;
    const std::string wrong = TwoLives(/*is_broken=*/true, nodes, seed);
    found += absl::StrContains(wrong, "the newest is not its");
    if (said.empty()) said = wrong.substr(0, wrong.find('\n'));
  }
  std::cout << "snapshot.life_unchecked: found in " << found
            << " of 10 lives: " << said << "\n";
  EXPECT_EQ(found, 10) << said;
}

// Lives that were not made for it find it too.
TEST(NegativeTest, DrawnLivesFindBreakages) {
  constexpr uint64_t kMostSeeds = 60;
  for (const char* name :
       {"engine.update_before_commit", "engine.publish_before_complete",
        "daemon.outcome_not_recorded", "collective.delta_unverified"}) {
    uint64_t seed = 0;
    for (bool is_found = false; !is_found && seed < kMostSeeds; ++seed) {
      EXPECT_THAT(base::ConfigureFailpoints(absl::StrCat(name, "=break"), seed),
                  IsOk());
      is_found = !RunSchedule(DrawSchedule(Profile::kFast, seed), seed,
                              kernels::Reference())
                      .passed();
    }
    EXPECT_LT(seed, kMostSeeds) << name;
    std::cout << name << ": found by drawn life " << seed << "\n";
  }
  EXPECT_THAT(base::ConfigureFailpoints("", 0), IsOk());
}

}  // namespace
}  // namespace ballast::sim
