// Simulates many lives of jobs:
//
//   ballast_sim --seeds A..B [--profile fast|slow|death|disk|loss]
//   ballast_sim --seeds A..B [--scenario FILE | --scenarios DIR]
//               [--verbose]
//
// With a profile each seed draws a schedule; otherwise each scenario runs with
// each seed. Seeds are half-open. A failure is printed with the command that
// repeats it; the last line is "N seeds, N faults, N failures". Exit code 1 if
// there are failures, 2 for a wrong argument.
#include <array>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernels/reference/reference.h"
#include "tests/sim/random_schedule.h"
#include "tests/sim/runner.h"

namespace ballast::sim {
namespace {

struct Arguments {
  uint64_t first_seed = 0;
  uint64_t end_seed = 10;
  std::optional<Profile> profile;
  std::string file;
  std::string directory = "tests/sim/scenarios";
  bool is_verbose = false;
};

int Usage() {
  std::cerr << "usage: ballast_sim --seeds A..B [--profile "
               "fast|slow|death|disk|loss | --scenario FILE | --scenarios DIR] "
               "[--verbose]\n";
  return 2;
}

bool Parse(int argc, char** argv, Arguments* arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--verbose") {
      arguments->is_verbose = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const std::string value = argv[++i];
    if (name == "--scenario") {
      arguments->file = value;
    } else if (name == "--scenarios") {
      arguments->directory = value;
    } else if (name == "--profile") {
      arguments->profile = ProfileOf(value);
      if (!arguments->profile.has_value()) return false;
    } else if (name == "--seeds") {
      const std::vector<std::string> ends = absl::StrSplit(value, "..");
      if (ends.size() != 2 ||
          !absl::SimpleAtoi(ends[0], &arguments->first_seed) ||
          !absl::SimpleAtoi(ends[1], &arguments->end_seed)) {
        return false;
      }
    } else {
      return false;
    }
  }
  return arguments->first_seed < arguments->end_seed;
}

absl::StatusOr<std::vector<Scenario>> Load(const Arguments& arguments) {
  if (arguments.file.empty()) return LoadScenarios(arguments.directory);
  absl::StatusOr<Scenario> one = LoadScenario(arguments.file);
  if (!one.ok()) return one.status();
  return std::vector<Scenario>{*std::move(one)};
}

// Adds up and prints what became of each run.
class Report {
 public:
  explicit Report(const Arguments& arguments) : arguments_(arguments) {}

  // `arguments`: what to add to `--seeds S..S+1` to repeat it.
  void Add(uint64_t seed, const std::string& arguments, const std::string& text,
           const Result& result) {
    faults_ += result.faults;
    for (size_t i = 0; i < by_kind_.size(); ++i) {
      by_kind_[i] += result.faults_by_kind[i];
    }
    if (arguments_.is_verbose) std::cout << text;
    if (arguments_.is_verbose || !result.passed()) {
      std::cout << absl::StrFormat(
          "bazel run //tests/sim:ballast_sim -- --seeds %d..%d %s\n  trace %x, "
          "%d faults, %d aborts, %s\n",
          seed, seed + 1, arguments, result.trace_hash, result.faults,
          result.aborts, absl::FormatDuration(result.virtual_time));
    }
    if (result.passed()) return;
    ++failures_;
    for (const std::string& violation : result.violations) {
      std::cout << "  " << violation << "\n";
    }
    std::cout.flush();
  }

  int Close() const {
    for (size_t i = 0; i < by_kind_.size(); ++i) {
      std::cout << Name(static_cast<Fault::Kind>(i)) << " " << by_kind_[i]
                << (i + 1 < by_kind_.size() ? ", " : "\n");
    }
    std::cout << arguments_.end_seed - arguments_.first_seed << " seeds, "
              << faults_ << " faults, " << failures_ << " failures\n";
    return failures_ == 0 ? 0 : 1;
  }

 private:
  const Arguments& arguments_;
  int64_t faults_ = 0;
  int64_t failures_ = 0;
  std::array<int64_t, Fault::kNumKinds> by_kind_{};
};

void RunProfile(const Arguments& arguments, Report* report) {
  const std::string how =
      absl::StrCat("--profile ", std::string(Name(*arguments.profile)));
  for (uint64_t seed = arguments.first_seed; seed < arguments.end_seed;
       ++seed) {
    const std::string schedule = DrawSchedule(*arguments.profile, seed);
    report->Add(seed, how, schedule,
                RunSchedule(schedule, seed, kernels::Reference()));
  }
}

int Main(int argc, char** argv) {
  Arguments arguments;
  if (!Parse(argc, argv, &arguments)) return Usage();
  Report report(arguments);
  if (arguments.profile.has_value()) {
    RunProfile(arguments, &report);
    return report.Close();
  }
  const absl::StatusOr<std::vector<Scenario>> scenarios = Load(arguments);
  if (!scenarios.ok()) {
    std::cerr << scenarios.status() << "\n";
    return 2;
  }
  for (uint64_t seed = arguments.first_seed; seed < arguments.end_seed;
       ++seed) {
    for (const Scenario& scenario : *scenarios) {
      report.Add(seed, absl::StrCat("--scenario ", scenario.path), "",
                 RunTwice(scenario, seed));
    }
  }
  return report.Close();
}

}  // namespace
}  // namespace ballast::sim

int main(int argc, char** argv) { return ballast::sim::Main(argc, argv); }
