// What a node says of a job when it meets the others: all that they must agree
// on, each option with its value, so that whoever differs is told in what.
#ifndef SERVER_DAEMON_JOB_JOIN_H_
#define SERVER_DAEMON_JOB_JOIN_H_

#include "absl/time/time.h"
#include "proto/peer.pb.h"
#include "server/daemon/job_routes.h"
#include "server/layout/layout.h"
#include "server/layout/policy.h"
#include "server/session/job_spec.h"

namespace ballast::daemon {

// `policy` is that of spec.exchange; `default_hold` and `algorithms` are the
// daemon's jobs.hold, transport.gather and transport.reduce;
// `keeps_snapshots`: it has a snapshots.directory; `keeps_replicas`: a
// replicas.every_steps.
v1::Join MakeJoin(const session::JobSpec& spec, const layout::Layout& layout,
                  const layout::ExchangePolicy& policy,
                  absl::Duration default_hold, const Algorithms& algorithms,
                  bool keeps_snapshots = false, bool keeps_replicas = false);

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_JOB_JOIN_H_
