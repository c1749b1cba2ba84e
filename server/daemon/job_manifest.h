// What a job's snapshots say of the job itself.
#ifndef SERVER_DAEMON_JOB_MANIFEST_H_
#define SERVER_DAEMON_JOB_MANIFEST_H_

#include "server/layout/exchange_plan.h"
#include "server/session/local_job.h"
#include "server/snapshot/files/manifest.h"

namespace ballast::daemon {

// All that stays the same from snapshot to snapshot.
snapshot::Manifest MakeManifest(const session::LocalJob& job,
                                const layout::ExchangePlan& plan,
                                int num_moments, bool has_residuals);

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_JOB_MANIFEST_H_
