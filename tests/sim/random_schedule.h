// Draws whole lives of a job from a seed: its shape, policy and network, what
// befalls it, and where it goes on after all machines failed.
#ifndef TESTS_SIM_RANDOM_SCHEDULE_H_
#define TESTS_SIM_RANDOM_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// The disk of a schedule.
struct DiskFaults {
  int64_t fails_after = INT64_MAX;  // changes
  int64_t failures = 0;
  uint64_t capacity_bytes = UINT64_MAX;
};

struct Schedule {
  std::string text;  // in the language of scenarios
  // kDisk: the power fails after so many changes of the disk, and a job of
  // this text goes on from what is stored.
  std::string next_text;
  int64_t power_fails_after = 0;
  DiskFaults disk;
  // kLoss: likewise, on these nodes of the first life (-1: a new one).
  std::vector<int> next_nodes;
};

// The same for the same arguments, always.
Schedule DrawSchedule(Profile profile, uint64_t seed);

}  // namespace ballast::sim

#endif  // TESTS_SIM_RANDOM_SCHEDULE_H_
