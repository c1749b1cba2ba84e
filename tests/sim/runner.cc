#include "tests/sim/runner.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/reference/reference.h"
#include "server/base/status_macros.h"

namespace ballast::sim {

Result RunOnce(const Scenario& scenario, uint64_t seed) {
  return Cluster(scenario, seed, kernels::Reference()).Run();
}

Result RunTwice(const Scenario& scenario, uint64_t seed) {
  Result first = RunOnce(scenario, seed);
  const Result second = RunOnce(scenario, seed);
  if (first.trace_hash != second.trace_hash) {
    first.violations.push_back(absl::StrFormat(
        "I25: the trace is %x, then %x", first.trace_hash, second.trace_hash));
  }
  return first;
}

absl::StatusOr<Scenario> LoadScenario(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("no scenario ", path));
  const std::string text((std::istreambuf_iterator<char>(file)),
                         std::istreambuf_iterator<char>());
  return ParseScenario(std::filesystem::path(path).stem().string(), text);
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
