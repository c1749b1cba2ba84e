// A daemon that dies at each failpoint there is, at many of its passages, and
// once more while the next one takes over: no bit changes, no step is lost or
// doubled, nothing is left (I19, I20, I25, I28). What is broken on purpose is
// negative_test's.
#include "server/base/failpoint.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference.h"
#include "server/base/status_matchers.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/files/memory_file_system.h"
#include "tests/sim/cluster.h"
#include "tests/sim/scenario.h"

namespace ballast::sim {
namespace {

using base::IsOk;

// Passages are many: some of the first, and ever fewer.
constexpr int kHits[] = {1, 2, 3, 4, 5, 7, 9, 12, 16, 22, 30, 41, 56, 77, 105};

// What a job of one node never comes to; tests/integration does, or two nodes.
std::set<std::string> Elsewhere() {
  return {"collective.delta_computed",  // encodes nothing
          "collective.delta_written",
          "collective.raw_dropped",  // keeps all weights
          "daemon.unit_held",          "daemon.unit_not_held",
          "daemon.weights_leave",  // tests/integration/opening_test.py
          "ipc.keeper_tell",       // tests/integration/failpoint_test.py
          "replica.fetched",           "replica.placed",
          "replica.pruning",           "snapshot.old_moved"};
}

// What a daemon passes while it takes over.
const std::set<std::string> kTakingOver = {
    "daemon.adopting",         "daemon.restored", "daemon.taken_over",
    "optimizer.undo.restored", "relink.agreed",   "relink.recorded"};

// All failpoints, from the sources.
std::set<std::string> Names() {
  std::ifstream file("server/daemon/failpoint_names.txt");
  std::set<std::string> names;
  std::string macro;
  std::string name;
  while (file >> macro >> name) {
    if (macro != "SABOTAGED") names.insert(name);
  }
  return names;
}

// A skipped, an aborted and a loading step, a worker that is replaced, and
// snapshots all the time.
Scenario Eventful(std::string_view exchange) {
  auto parsed = ParseScenario(
      "failpoints",
      absl::StrCat("nodes 1\nexchange ", std::string(exchange), R"(
workers 2
tensor wte float32 3x2049
tensor head bfloat16 5001
tensor ones float32 900
optimizer adamw lr 0.01
clip 1.0
bucket_bytes 8192
chunk_bytes 8192
push_order random
steps 8
hold 10m
at step 3 nan rank 0
at step 4 lr rank 1 0.5
at step 5 crash rank 1 back 3ms
)"));
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  parsed->has_keepers = true;
  // Where weights are not resident there is neither.
  if (exchange.find("secondary_partition") != std::string_view::npos) {
    return *std::move(parsed);
  }
  parsed->loads[6] = false;
  parsed->snapshot_every = 2;
  return *std::move(parsed);
}

// How often the daemon died.
int CountDeaths(const std::string& failpoints, const Scenario& scenario,
                uint64_t seed, snapshot::FileSystem* files) {
  EXPECT_THAT(base::ConfigureFailpoints(failpoints, seed), IsOk());
  Cluster cluster(scenario, seed, kernels::Reference(), nullptr, files);
  cluster.DieAtFailpoints(absl::Milliseconds(5));
  const Result result = cluster.Run();
  EXPECT_THAT(base::ConfigureFailpoints("", 0), IsOk());
  EXPECT_EQ(absl::StrJoin(result.violations, "\n"), "")
      << failpoints << " seed " << seed;
  return cluster.deaths();
}

int CountDeaths(const std::string& failpoints, std::string_view exchange,
                uint64_t seed) {
  snapshot::MemoryFileSystem files;
  const int deaths = CountDeaths(failpoints, Eventful(exchange), seed, &files);
  const auto snapshots = snapshot::ListSnapshots(files, kJobName);
  EXPECT_TRUE(snapshots.ok()) << snapshots.status();
  for (const snapshot::CatalogEntry& entry : *snapshots) {
    EXPECT_THAT(entry.status, IsOk()) << failpoints << " " << entry.name;
  }
  return deaths;
}

TEST(FailpointTest, ThereAreMany) { EXPECT_GT(Names().size(), 30u); }

TEST(FailpointTest, ADeathAtAnyOfThemChangesNoBit) {
  const std::set<std::string> elsewhere = Elsewhere();
  for (const std::string& name : Names()) {
    if (kTakingOver.contains(name)) continue;
    int deaths = 0;
    for (const int hit : kHits) {
      deaths += CountDeaths(absl::StrCat(name, "=kill@", hit), "exact", hit);
    }
    EXPECT_EQ(deaths > 0, !elsewhere.contains(name)) << name;
  }
}

// The next daemon dies too, in the middle of it.
TEST(FailpointTest, ADeathThatFollowsAnotherChangesNoBit) {
  for (const std::string& second : kTakingOver) {
    if (absl::StartsWith(second, "relink.")) continue;  // below
    int most = 0;
    for (const std::string& name : Names()) {
      if (name == second) continue;
      for (const int hit : {3, 9, 30}) {
        most = std::max(most, CountDeaths(absl::StrCat(name, "=kill@", hit, ";",
                                                       second, "=kill@1"),
                                          "exact", hit));
      }
    }
    EXPECT_EQ(most, 2) << second;
  }
}

// Again and again, wherever the seed says.
TEST(FailpointTest, ManyDeathsChangeNoBit) {
  const std::set<std::string> names = Names();
  int deaths = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::vector<std::string> rules;
    for (const std::string& name : names) {
      rules.push_back(absl::StrCat(name, "=kill%1"));
    }
    deaths += CountDeaths(absl::StrJoin(rules, ";"),
                          seed % 2 == 0 ? "zeropp" : "delta4", seed);
  }
  EXPECT_GT(deaths, 100);
}

// All workers may have closed the job before the next daemon goes on with it;
// without snapshots there is nothing else that it waits for.
TEST(FailpointTest, ADeathWhileAJobClosesLeavesNothing) {  // I28
  Scenario scenario = Eventful("exact");
  scenario.snapshot_every = 0;
  for (const char* const name : {"session.closed", "session.close_recorded"}) {
    for (const int hit : {1, 2}) {
      const std::string rule = absl::StrCat(name, "=kill@", hit);
      EXPECT_EQ(CountDeaths(rule, scenario, hit, /*files=*/nullptr), 1) << rule;
    }
  }
}

// Where weights are not resident: whatever workers hold, or wait for.
TEST(FailpointTest, ADeathWhileWorkersGatherChangesNoBit) {
  const std::set<std::string> gathering = {
      "collective.raw_dropped", "daemon.unit_held", "daemon.unit_not_held"};
  const std::string none = " secondary_partition=none\nunits_at_once 3";
  for (const std::string& name : Names()) {
    if (kTakingOver.contains(name) || absl::StartsWith(name, "snapshot.")) {
      continue;
    }
    int deaths = 0;
    const bool is_gathering = gathering.contains(name);
    for (const int hit : kHits) {
      if (!is_gathering && hit % 3 != 1) continue;
      const std::string rule = absl::StrCat(name, "=kill@", hit);
      deaths += CountDeaths(rule, "exact" + none, hit);
      if (hit > 9) continue;
      deaths +=
          CountDeaths(rule, "zeropp override:*=int8" + none + "\nnodes 2", hit);
    }
    EXPECT_TRUE(deaths > 0 || !is_gathering) << name;
  }
}

// Which only several nodes come to, or each of them by itself.
bool IsOfSeveral(const std::string& name) {
  return absl::StartsWith(name, "collective.delta") ||
         absl::StartsWith(name, "membership.") ||
         absl::StartsWith(name, "relink.") ||
         absl::StartsWith(name, "replica.");
}

// Nodes that begin a job: some have its first weights, some do not yet. Nobody
// has told a worker that it has begun, so they open it anew, or go on with it.
TEST(FailpointTest, ADeathWhileNodesBeginChangesNoBit) {
  for (const char* const exchange :
       {"exact", "delta4 override:*=int4\nreplica_every 1",
        "zeropp override:*=int8 secondary_partition=none\nunits_at_once 3"}) {
    for (const char* const name :
         {"daemon.weights_leave", "daemon.weights_there", "daemon.begun",
          "session.begin", "session.attached"}) {
      int deaths = 0;
      for (const int hit : {1, 2, 3}) {
        for (uint64_t seed = 1; seed <= 5; ++seed) {
          deaths += CountDeaths(absl::StrCat(name, "=kill@", hit),
                                absl::StrCat(exchange, "\nnodes 3"), seed);
        }
      }
      EXPECT_EQ(deaths, 15) << name << " " << exchange;
    }
  }
}

// Of two nodes, either one's; also while a snapshot or a replica is being made,
// which the other one has to give up.
TEST(FailpointTest, ADeathOfOneOfTwoNodesChangesNoBit) {
  constexpr std::string_view kExchange =
      "delta4 override:*=int4\nnodes 2\nreplica_every 1";
  int total = 0;
  for (const std::string& name : Names()) {
    if (kTakingOver.contains(name)) continue;
    const bool is_of_several = IsOfSeveral(name);
    const bool is_rare = absl::StartsWith(name, "snapshot.") || is_of_several;
    int deaths = 0;
    for (const int hit : {1, 2, 3, 5, 9}) {
      if (hit != 9 && !is_rare) continue;
      deaths += CountDeaths(absl::StrCat(name, "=kill@", hit), kExchange, hit);
    }
    EXPECT_TRUE(deaths > 0 || !is_of_several) << name;
    total += deaths;
  }
  EXPECT_GT(total, 20);
}

// One dies, and one of them again where they agree on where they go on: the
// other one too had recorded it, or not. One node agrees with itself.
TEST(FailpointTest, ADeathWhileNodesMeetChangesNoBit) {
  for (const char* const first : {"engine.vote", "membership.decided",
                                  "engine.committed", "engine.published"}) {
    for (const char* const second : {"relink.agreed", "relink.recorded"}) {
      const auto rules = [&](int at, int hit) {
        return absl::StrCat(first, "=kill@", at, ";", second, "=kill@", hit);
      };
      EXPECT_EQ(CountDeaths(rules(3, 1), "zeropp", 1), 2) << rules(3, 1);
      for (const int hit : {1, 2}) {
        EXPECT_EQ(CountDeaths(rules(9, hit), "zeropp\nnodes 2", hit), 2)
            << rules(9, hit);
      }
    }
  }
}

}  // namespace
}  // namespace ballast::sim
