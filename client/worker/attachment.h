// From options to a running session: connect, attach, map the segments, hand
// over initial values, wait until the job runs.
//
// Threading: thread-compatible.
#ifndef CLIENT_WORKER_ATTACHMENT_H_
#define CLIENT_WORKER_ATTACHMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/worker/connection.h"
#include "client/worker/control_view.h"
#include "client/worker/holdings.h"
#include "client/worker/options.h"
#include "client/worker/push_tracker.h"
#include "proto/worker.pb.h"
#include "server/base/segment.h"

namespace ballast::worker {

struct TensorView {
  uint64_t size_bytes = 0;
  uint64_t weight_offset = 0;
  uint64_t gradient_offset = 0;
  bool is_frozen = false;
};

struct Attachment {
  Connection connection;
  base::Segment control_block;
  base::Segment gradients;  // empty if no trainable tensor has elements
  // This rank's former worker pushed some of the open step: what is computed
  // again stays out of the shared memory until it is pushed.
  bool shadows_gradients = false;
  base::Segment weights;  // read-only; empty if no tensor has elements
  // It pushed all of the open step, which may commit at any time: `weights`
  // is a copy, so that they stay under whoever computes the step again.
  bool holds_weights = false;
  ControlView view;
  bool has_view = false;  // set once `view` is one
  PushTracker tracker;
  Holdings holdings;
  std::vector<TensorView> tensors;
  v1::AttachReply attach;
  v1::BeginReply begin;
  uint32_t failure_seen = 0;  // count of the last failure before Begin
};

// Blocks until the job runs. A daemon that goes away before, or ends the
// session with Unavailable, is waited for, and all begins anew (opening.h).
// Errors: Connect's, the daemon's, DataLoss if what it sent does not fit
// together.
absl::StatusOr<Attachment> Attach(const Options& options);

// Asks what the open step is and what of it is in, and fits `attachment` to
// the answer, its `begin`. Attach does it once; again where the step has ended
// meanwhile. Unavailable: the daemon went away, or its own word.
absl::Status Begin(const Options& options, absl::Duration timeout,
                   Attachment& attachment);

// The step is over: gradients and weights are the daemon's again.
absl::Status ShareAll(Attachment& attachment);

// What the daemon says the job waits for, "" if for nothing or nobody knows.
// `stats_json` is GetStats' reply.
std::string WaitingFor(const std::string& stats_json);

}  // namespace ballast::worker

#endif  // CLIENT_WORKER_ATTACHMENT_H_
