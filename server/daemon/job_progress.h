// How far a job has come on one node, between its record and the other nodes
// (membership/rejoin.h).
//
// Threading: control thread only.
#ifndef SERVER_DAEMON_JOB_PROGRESS_H_
#define SERVER_DAEMON_JOB_PROGRESS_H_

#include "absl/status/status.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"
#include "server/daemon/job_record.h"
#include "server/layout/exchange_plan.h"
#include "server/optimizer/scalars.h"

namespace ballast::daemon {

// What this node tells when it joins again.
v1::Progress MakeProgress(const JobRecord& record,
                          const optimizer::Scalars& scalars, NodeRank node);

v1::PeerFrame OutcomeOf(Generation generation, const v1::Commit& commit);
v1::PeerFrame OutcomeOf(Generation generation, const v1::Abort& abort);

// What a member hears is recorded before it acts on it, as the coordinator
// records it before it tells, with the codecs that `plan` has after it. What is
// recorded already stays.
absl::Status KeepOutcome(const v1::PeerFrame& outcome,
                         const layout::ExchangePlan& plan, JobRecord* record);
// The same of what a view says of the last step, if it does.
absl::Status KeepOutcome(Generation generation, const v1::View& view,
                         const layout::ExchangePlan& plan, JobRecord* record);

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_JOB_PROGRESS_H_
