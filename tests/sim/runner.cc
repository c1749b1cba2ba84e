#include "tests/sim/runner.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/reference/reference.h"
#include "server/base/random.h"
#include "server/base/status_macros.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/memory_file_system.h"

namespace ballast::sim {
namespace {

using snapshot::MemoryFileSystem;

Result Unparsed(const absl::Status& status) {
  Result result;
  result.violations.push_back(status.ToString());
  return result;
}

void Add(const Result& more, Result* result) {
  result->violations.insert(result->violations.end(), more.violations.begin(),
                            more.violations.end());
  result->trace_hash = result->trace_hash * 31 + more.trace_hash;
  result->faults += more.faults;
  for (size_t i = 0; i < more.faults_by_kind.size(); ++i) {
    result->faults_by_kind[i] += more.faults_by_kind[i];
  }
  result->aborts += more.aborts;
  result->virtual_time += more.virtual_time;
}

void Count(Fault::Kind kind, int64_t times, Result* result) {
  result->faults += static_cast<int>(times);
  result->faults_by_kind[static_cast<size_t>(kind)] += static_cast<int>(times);
}

// Ends in the middle, by `schedule`'s power failure, or at its own end.
Result RunUntilPowerFails(const Schedule& schedule, const Scenario& scenario,
                          uint64_t seed, const kernels::Kernels& kernels,
                          MemoryFileSystem* files) {
  constexpr int kMaxEvents = 2'000'000;
  base::SeededRandom random(seed);
  Result result;
  {
    Cluster cluster(scenario, seed, kernels, nullptr, files);
    cluster.Start();
    for (int i = 0; i < kMaxEvents; ++i) {
      if (files->changes() >= schedule.power_fails_after) break;
      if (!cluster.clock().Step()) break;
    }
    result = cluster.so_far();
    result.trace_hash = cluster.clock().trace_hash();
    files->Crash(&random);
  }
  Count(Fault::Kind::kPowerFails, 1, &result);
  Count(Fault::Kind::kDiskFails, files->failures(), &result);
  Count(Fault::Kind::kDiskFull, files->refusals(), &result);
  return result;
}

// Two lives in one world: what the nodes of the first hold is all there is.
Result RunWithLoss(const Schedule& schedule, const Scenario& scenario,
                   Scenario next, uint64_t seed,
                   const kernels::Kernels& kernels) {
  Cluster cluster(scenario, seed, kernels);
  Result result = cluster.RunLife();
  next.first_version = cluster.NewestHeldStep();
  // The reference skips what was skipped.
  for (const Fault& fault : scenario.faults) {
    const bool is_of_gradient =
        fault.kind == Fault::Kind::kNan || fault.kind == Fault::Kind::kInfinity;
    if (is_of_gradient && fault.step <= next.first_version) {
      next.faults.push_back(fault);
    }
  }
  if (next.first_version > 0) {
    next.earlier = {{next.first_version, scenario.nodes, scenario.workers}};
  }
  Add(Cluster(next, seed + 1, kernels, &cluster, schedule.next_nodes).Run(),
      &result);
  return result;
}

Result RunScheduleOnce(const Schedule& schedule, uint64_t seed,
                       const kernels::Kernels& kernels) {
  const absl::StatusOr<Scenario> scenario =
      ParseScenario("schedule", schedule.text);
  if (!scenario.ok()) return Unparsed(scenario.status());
  if (schedule.next_text.empty()) {
    return Cluster(*scenario, seed, kernels).Run();
  }
  absl::StatusOr<Scenario> next = ParseScenario("next", schedule.next_text);
  if (!next.ok()) return Unparsed(next.status());
  if (!schedule.next_nodes.empty()) {
    return RunWithLoss(schedule, *scenario, *std::move(next), seed, kernels);
  }
  MemoryFileSystem files;
  files.FailAfter(schedule.disk.fails_after, schedule.disk.failures);
  files.set_capacity(schedule.disk.capacity_bytes);
  Result result =
      RunUntilPowerFails(schedule, *scenario, seed, kernels, &files);
  files.FailAfter(INT64_MAX, 0);
  files.set_capacity(UINT64_MAX);
  const auto newest = snapshot::FindNewest(files, kJobName);
  if (!newest.ok()) return Unparsed(newest.status());
  if (newest->has_value()) next->first_version = (*newest)->step;
  Add(Cluster(*next, seed + 1, kernels, nullptr, &files).Run(), &result);
  return result;
}

void CompareTraces(const Result& second, Result* first) {
  if (first->trace_hash == second.trace_hash) return;
  first->violations.push_back(absl::StrFormat(
      "I25: the trace is %x, then %x", first->trace_hash, second.trace_hash));
}

}  // namespace

Result RunOnce(const Scenario& scenario, uint64_t seed) {
  return Cluster(scenario, seed, kernels::Reference()).Run();
}

Result RunTwice(const Scenario& scenario, uint64_t seed) {
  Result first = RunOnce(scenario, seed);
  CompareTraces(RunOnce(scenario, seed), &first);
  return first;
}

Result RunSchedule(const Schedule& schedule, uint64_t seed,
                   const kernels::Kernels& kernels) {
  Result first = RunScheduleOnce(schedule, seed, kernels);
  CompareTraces(RunScheduleOnce(schedule, seed, kernels), &first);
  return first;
}

absl::StatusOr<Scenario> LoadScenario(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("no scenario ", path));
  const std::string text((std::istreambuf_iterator<char>(file)),
                         std::istreambuf_iterator<char>());
  ASSIGN_OR_RETURN(
      Scenario scenario,
      ParseScenario(std::filesystem::path(path).stem().string(), text));
  scenario.path = path;
  return scenario;
}

absl::StatusOr<std::vector<Scenario>> LoadScenarios(const std::string& path) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<Scenario> scenarios;
  for (const std::string& file : files) {
    ASSIGN_OR_RETURN(scenarios.emplace_back(), LoadScenario(file));
  }
  if (scenarios.empty()) {
    return absl::NotFoundError(absl::StrCat("no scenario in ", path));
  }
  return scenarios;
}

}  // namespace ballast::sim
