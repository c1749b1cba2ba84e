// Simulates scenarios with many seeds:
//
//   ballast_sim --seeds A..B [--scenario FILE | --scenarios DIR] [--verbose]
//
// Seeds are half-open. Each failure is printed with what repeats it; the last
// line is "N seeds, N faults, N failures". Exit code 1 if there are failures.
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "tests/sim/runner.h"

namespace ballast::sim {
namespace {

struct Arguments {
  uint64_t first_seed = 0;
  uint64_t end_seed = 10;
  std::string file;
  std::string directory = "tests/sim/scenarios";
  bool is_verbose = false;
};

int Usage() {
  std::cerr << "usage: ballast_sim --seeds A..B [--scenario FILE | "
               "--scenarios DIR] [--verbose]\n";
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

int Main(int argc, char** argv) {
  Arguments arguments;
  if (!Parse(argc, argv, &arguments)) return Usage();
  const absl::StatusOr<std::vector<Scenario>> scenarios = Load(arguments);
  if (!scenarios.ok()) {
    std::cerr << scenarios.status() << "\n";
    return 2;
  }
  int64_t faults = 0;
  int64_t failures = 0;
  for (uint64_t seed = arguments.first_seed; seed < arguments.end_seed;
       ++seed) {
    for (const Scenario& scenario : *scenarios) {
      const Result result = RunTwice(scenario, seed);
      faults += result.faults;
      if (arguments.is_verbose || !result.passed()) {
        std::cout << absl::StrFormat(
            "%s seed %d: trace %x, %d faults, %d aborts, %s\n", scenario.name,
            seed, result.trace_hash, result.faults, result.aborts,
            absl::FormatDuration(result.virtual_time));
      }
      if (result.passed()) continue;
      ++failures;
      for (const std::string& violation : result.violations) {
        std::cout << "  " << violation << "\n";
      }
    }
  }
  std::cout << arguments.end_seed - arguments.first_seed << " seeds, " << faults
            << " faults, " << failures << " failures\n";
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ballast::sim

int main(int argc, char** argv) { return ballast::sim::Main(argc, argv); }
