// What is not well with a daemon and its jobs, and what to do about it, by
// what the daemon says of them (Status, GetJob).
//
// Threading: pure functions.
#ifndef CLIENT_CTL_DOCTOR_H_
#define CLIENT_CTL_DOCTOR_H_

#include <span>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "proto/admin.pb.h"

namespace ballast::ctl {

// The words of `python3 -m ballast.doctor`, which looks at a worker's side.
struct Finding {
  enum class State {
    kOk,
    kWarning,  // it works, something is lost by it
    kWrong,    // to be mended
    kSkipped,  // nothing to judge by, yet
  };
  std::string subject;  // "daemon", "job gpt2"
  std::string check;
  State state = State::kOk;
  std::string text;
  std::string fix;  // empty if there is nothing to do
};

// The daemon, then job by job, in the order of what is given.
std::vector<Finding> Examine(const v1::StatusReply& status,
                             std::span<const v1::GetJobReply> jobs);

// Nothing is wrong; warnings may be there.
bool IsWell(std::span<const Finding> findings);

std::string Render(std::span<const Finding> findings);
nlohmann::ordered_json ToJson(std::span<const Finding> findings);

}  // namespace ballast::ctl

#endif  // CLIENT_CTL_DOCTOR_H_
