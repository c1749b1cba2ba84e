// Runs a scenario with a seed, as often as it takes to trust it.
#ifndef TESTS_SIM_RUNNER_H_
#define TESTS_SIM_RUNNER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kernels.h"
#include "tests/sim/cluster.h"
#include "tests/sim/scenario.h"

namespace ballast::sim {

// All lives of the job; those that follow one with violations do not run. With
// broken kernels it is a negative control.
Result RunOnce(const Scenario& scenario, uint64_t seed,
               const kernels::Kernels& kernels);
// With the scalar reference kernels.
Result RunOnce(const Scenario& scenario, uint64_t seed);

// Twice; a run whose trace differs from the first is a violation.
Result RunTwice(const Scenario& scenario, uint64_t seed,
                const kernels::Kernels& kernels);
Result RunTwice(const Scenario& scenario, uint64_t seed);

// A drawn schedule, also twice.
Result RunSchedule(const std::string& text, uint64_t seed,
                   const kernels::Kernels& kernels);

// All *.txt of a directory, by name.
absl::StatusOr<std::vector<Scenario>> LoadScenarios(const std::string& path);
absl::StatusOr<Scenario> LoadScenario(const std::string& path);

}  // namespace ballast::sim

#endif  // TESTS_SIM_RUNNER_H_
