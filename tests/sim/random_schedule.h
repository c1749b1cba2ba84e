// Draws whole lives of a job from a seed: its shape, policy and network, what
// befalls it, and where it goes on after all machines failed.
#ifndef TESTS_SIM_RANDOM_SCHEDULE_H_
#define TESTS_SIM_RANDOM_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ballast::sim {

enum class Profile {
  kFast,   // small jobs, some faults that are survived
  kSlow,   // more nodes, ranks, steps and faults
  kDeath,  // one fault that is not: all must hear why, in bounded time
  kDisk,   // snapshots on a bad disk; the power fails; others go on from them
  kLoss,   // a node dies for good; the job goes on from replicas, resized
};

std::optional<Profile> ProfileOf(std::string_view name);
std::string_view Name(Profile profile);

// In the language of scenarios; the same for the same arguments, always.
std::string DrawSchedule(Profile profile, uint64_t seed);

}  // namespace ballast::sim

#endif  // TESTS_SIM_RANDOM_SCHEDULE_H_
