// One local rank's place in a job: its segments, and what the daemon knows of
// the worker in it. What the worker may write is never trusted: `taken` holds
// the daemon's own account of what was pushed.
//
// Threading: control thread only.
#ifndef SERVER_SESSION_SLOT_H_
#define SERVER_SESSION_SLOT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "kernels/hyper_parameters.h"
#include "server/device/device.h"
#include "server/session/job_spec.h"
#include "server/session/session.h"

namespace ballast::session {

enum class SlotState { kMissing, kAttached, kReady, kClosed };
std::string_view Name(SlotState state);

struct Slot {
  SlotState state = SlotState::kMissing;
  WorkerLink* link = nullptr;
  std::unique_ptr<device::SharedBuffer> control;
  std::unique_ptr<device::SharedBuffer> gradients;
  std::unique_ptr<device::SharedBuffer> initial;  // rank 0, until Begin
  std::vector<uint64_t> taken;  // last word accepted, per bucket
  uint64_t taken_input = 0;     // step_input accepted
  uint64_t ignored = 0;         // words that made no sense, since attach
  std::string open_cursor;      // with taken_input
  std::vector<kernels::HyperParameters> open_groups;
  std::string cursor;           // committed
  // Answered when the job runs or fails.
  absl::AnyInvocable<void(absl::StatusOr<BeginReply>) &&> begin_done;
  int64_t last_pid = 0;
  int buckets_pushed = 0;       // of the open step
};

}  // namespace ballast::session

#endif  // SERVER_SESSION_SLOT_H_
