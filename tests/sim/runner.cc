#include "tests/sim/runner.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

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

void Add(const Result& more, Result* result) {
  result->violations.insert(result->violations.end(), more.violations.begin(),
                            more.violations.end());
  result->trace_hash = result->trace_hash * 31 + more.trace_hash;
  result->faults += more.faults;
  for (size_t i = 0; i < more.faults_by_kind.size(); ++i) {
    result->faults_by_kind[i] += more.faults_by_kind[i];
  }
  result->weights = more.weights;
  result->aborts += more.aborts;
  result->wire_bytes += more.wire_bytes;
  result->heals += more.heals;
  result->early_heals += more.early_heals;
  result->reads += more.reads;
  result->virtual_time += more.virtual_time;
}

void Count(Fault::Kind kind, int64_t times, Result* result) {
  result->faults += static_cast<int>(times);
  result->faults_by_kind[static_cast<size_t>(kind)] += static_cast<int>(times);
}

// In any of its lives.
bool EverNeedsKeepers(const Scenario& life) {
  return NeedsKeepers(life) || std::ranges::any_of(life.next, EverNeedsKeepers);
}

// All lives of a job, one after the other. Those on the nodes of the one before
// are in its world; a power failure ends a world, and leaves the disk.
class Lives {
 public:
  Lives(const Scenario& first, uint64_t seed, const kernels::Kernels& kernels)
      : life_(first), seed_(seed), kernels_(kernels) {
    life_.has_keepers = EverNeedsKeepers(first);
  }

  Result Run() {
    for (;; ++seed_) {
      Begin();
      const bool is_last = life_.next.empty();
      Result result = life_.power_fails_after > 0 ? RunUntilPowerFails()
                      : is_last                   ? clusters_.back()->Run()
                                                  : clusters_.back()->RunLife();
      if (life_.disk.has_value()) CountFaultsOfDisk(&result);
      // Where something went wrong the rest would only obscure it.
      Add(result, &result_);
      if (is_last || !result_.passed()) return result_;
      if (absl::Status found = GoOn(); !found.ok()) {
        result_.violations.push_back(found.ToString());
        return result_;
      }
    }
  }

  ~Lives() { EndWorld(); }

 private:
  // The last one first.
  void EndWorld() {
    while (!clusters_.empty()) clusters_.pop_back();
  }

  void Begin() {
    if (life_.disk.has_value()) {
      files_.FailAfter(life_.disk->fails_after, life_.disk->failures);
      files_.set_capacity(life_.disk->capacity_bytes);
    }
    if (!life_.from.empty()) {
      clusters_.push_back(std::make_unique<Cluster>(
          life_, seed_, kernels_, clusters_.back().get(), life_.from));
      return;
    }
    EndWorld();
    clusters_.push_back(
        std::make_unique<Cluster>(life_, seed_, kernels_, nullptr,
                                  life_.disk.has_value() ? &files_ : nullptr));
  }

  // Ends in the middle, or at the job's own end.
  Result RunUntilPowerFails() {
    constexpr int kMaxEvents = 2'000'000;
    base::SeededRandom random(seed_);
    Cluster& cluster = *clusters_.back();
    const int64_t end = files_.changes() + life_.power_fails_after;
    cluster.Start();
    for (int i = 0; i < kMaxEvents; ++i) {
      if (files_.changes() >= end) break;
      if (!cluster.clock().Step()) break;
    }
    Result result = cluster.so_far();
    result.trace_hash = cluster.clock().trace_hash();
    files_.Crash(&random, life_.tears);
    EndWorld();
    Count(Fault::Kind::kPowerFails, 1, &result);
    return result;
  }

  void CountFaultsOfDisk(Result* result) {
    const auto count = [result](Fault::Kind kind, int64_t now, int64_t* last) {
      Count(kind, now - *last, result);
      *last = now;
    };
    count(Fault::Kind::kDiskFails, files_.failures(), &failures_);
    count(Fault::Kind::kDiskFull, files_.refusals(), &refusals_);
    count(Fault::Kind::kTorn, files_.torn(), &torn_);
  }

  // To the next life, which begins with the newest that is there.
  absl::Status GoOn() {
    Scenario next = life_.next[0];
    int64_t version =
        next.from.empty() ? 0 : clusters_.back()->NewestHeldStep(next.from);
    if (next.disk.has_value()) {
      ASSIGN_OR_RETURN(const auto newest,
                       snapshot::FindNewest(files_, kJobName));
      if (newest.has_value()) version = std::max(version, newest->step);
    }
    if (version < next.begins_after) {
      return absl::DataLossError(
          absl::StrCat("I17: the next life begins after step ", version,
                       " instead of ", next.begins_after, " or later"));
    }
    next.has_keepers = life_.has_keepers;
    next.first_version = version;
    // The reference skips what was skipped.
    for (const Fault& fault : life_.faults) {
      const bool is_of_gradient = fault.kind == Fault::Kind::kNan ||
                                  fault.kind == Fault::Kind::kInfinity;
      if (is_of_gradient && fault.step <= version) next.faults.push_back(fault);
    }
    for (const Scenario::Shape& shape : life_.earlier) {
      if (shape.last_step < version) next.earlier.push_back(shape);
    }
    if (version > 0) {
      next.earlier.push_back(ShapeAt(version));
    }
    life_ = std::move(next);
    return absl::OkStatus();
  }

  // What the job was when it made this version.
  Scenario::Shape ShapeAt(int64_t version) const {
    for (const Scenario::Shape& shape : life_.earlier) {
      if (version <= shape.last_step) {
        return {version, shape.nodes, shape.workers};
      }
    }
    return {version, life_.nodes, life_.workers};
  }

  Scenario life_;
  uint64_t seed_;
  const kernels::Kernels& kernels_;
  MemoryFileSystem files_;
  // In one world, each in the one before; it outlives those that follow.
  std::vector<std::unique_ptr<Cluster>> clusters_;
  int64_t failures_ = 0;  // counted so far
  int64_t refusals_ = 0;
  int64_t torn_ = 0;
  Result result_;
};

void CompareTraces(const Result& second, Result* first) {
  if (first->trace_hash == second.trace_hash) return;
  first->violations.push_back(absl::StrFormat(
      "I25: the trace is %x, then %x", first->trace_hash, second.trace_hash));
}

}  // namespace

Result RunOnce(const Scenario& scenario, uint64_t seed,
               const kernels::Kernels& kernels) {
  return Lives(scenario, seed, kernels).Run();
}

Result RunOnce(const Scenario& scenario, uint64_t seed) {
  return RunOnce(scenario, seed, kernels::Reference());
}

Result RunTwice(const Scenario& scenario, uint64_t seed,
                const kernels::Kernels& kernels) {
  Result first = RunOnce(scenario, seed, kernels);
  CompareTraces(RunOnce(scenario, seed, kernels), &first);
  return first;
}

Result RunTwice(const Scenario& scenario, uint64_t seed) {
  return RunTwice(scenario, seed, kernels::Reference());
}

Result RunSchedule(const std::string& text, uint64_t seed,
                   const kernels::Kernels& kernels) {
  const absl::StatusOr<Scenario> scenario = ParseScenario("schedule", text);
  if (scenario.ok()) return RunTwice(*scenario, seed, kernels);
  Result result;
  result.violations.push_back(scenario.status().ToString());
  return result;
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
