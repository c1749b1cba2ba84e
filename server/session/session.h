// The workers of this node. One LocalJob per job: its slots (one per local
// rank), the segments that workers map, and the words of their control blocks.
// It turns hostile shared memory into checked events, and engine decisions
// into stores and wakes.
//
//   missing --Attach--> attached --Begin--> ready --Close--> closed
//      ^------ socket closed, pidfd fired, Detach ------'
//
// A slot that a worker left keeps its segments; a new incarnation with the
// same job and layout takes it, is told the open step and its cursor, and
// pushes what is missing (unpushed gradients are zeroed first).
//
// Threading: control thread only.
#ifndef SERVER_SESSION_SESSION_H_
#define SERVER_SESSION_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "proto/control_block.h"
#include "proto/handle_socket.h"
#include "server/base/ids.h"
#include "server/base/vault.h"
#include "server/device/device.h"
#include "server/ipc/process_state.h"

namespace ballast::session {

struct WorkerIdentity {
  int64_t pid = 0;
  uint32_t uid = 0;
  Incarnation incarnation;
};

// `rank` has closed the job and gives nothing to `step` and those after it.
struct EarlyClose {
  Rank rank;
  Step step;

  bool operator==(const EarlyClose&) const = default;
};

// One worker's connection as the session sees it. Real: HandleLink, over an
// ipc::WorkerLink. Simulated: a worker in the same process.
class WorkerLink {
 public:
  virtual ~WorkerLink() = default;
  virtual const WorkerIdentity& identity() const = 0;
  // kWeights goes out read-only, everything else read-write.
  virtual absl::Status SendSegment(proto::SegmentKind kind,
                                   const device::SharedBuffer& buffer) = 0;
  // The control block changed and its futex was woken: nothing to do for a
  // real worker; a simulated one looks now.
  virtual void OnWake() = 0;
  // Leaves in the vault what the next daemon needs to speak to this worker.
  virtual absl::Status Keep(base::Vault* vault,
                            std::string_view name) const = 0;
  // Of its process, now: a few short reads of the kernel's files.
  virtual ipc::ProcessState process_state() const = 0;
  // Ends the lease; the link is deleted afterwards.
  virtual void Close(const absl::Status& why) = 0;
};

// What the rest of the daemon hears of one LocalJob; `server/daemon` connects
// it to engine and membership.
class JobObserver {
 public:
  virtual ~JobObserver() = default;
  // Every local slot is ready for the first time, or again after a loss.
  virtual void OnAllReady() = 0;
  virtual void OnPushed(LocalRank rank, BucketId bucket) = 0;
  virtual void OnStepInput(LocalRank rank,
                           std::span<const proto::GroupValues> groups,
                           std::string cursor) = 0;
  // Values that no optimizer could take (not finite, out of their range):
  // InvalidArgument names group, field and value. The step cannot commit.
  virtual void OnStepInputRefused(LocalRank rank, const absl::Status& why) = 0;
  // Where weights are not resident: the worker wants the unit held (an odd
  // `request`; control_block.h), or not any more.
  virtual void OnWanted(LocalRank rank, int unit, uint64_t request) = 0;
  virtual void OnWorkerLost(LocalRank rank, const absl::Status& why) = 0;
  virtual void OnWorkerClosed(LocalRank rank) = 0;
  virtual void OnAllClosed() = 0;
  // Whom or what the job waits for, in words; empty if for nobody.
  virtual std::string WaitingFor() const = 0;
};

}  // namespace ballast::session

#endif  // SERVER_SESSION_SESSION_H_
