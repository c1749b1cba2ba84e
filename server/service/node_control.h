// What the gRPC adapters ask of the daemon beyond session::Sessions;
// implemented by server/daemon.
//
// Threading: control thread only, except Version (any thread).
#ifndef SERVER_SERVICE_NODE_CONTROL_H_
#define SERVER_SERVICE_NODE_CONTROL_H_

#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/admin.pb.h"
#include "proto/worker.pb.h"

namespace ballast::service {

class NodeControl {
 public:
  virtual ~NodeControl() = default;
  virtual v1::VersionReply Version() const = 0;
  virtual v1::GetServerInfoReply ServerInfo() = 0;
  virtual v1::StatusReply Status() = 0;
  virtual v1::ListJobsReply ListJobs() = 0;
  // NotFound names the job.
  virtual absl::StatusOr<v1::GetJobReply> GetJob(const std::string& name) = 0;
  // The operator's word that the nodes which a job waits for are gone for good;
  // at node 0 of it. NotFound names the job; FailedPrecondition: it does not
  // wait for that, or not here.
  virtual absl::Status AdoptJob(const std::string& name) = 0;
  // A snapshot of a job, at any node of it; `done` is called on the control
  // thread once it is durable, or cannot be. NotFound names the job.
  using SaveDone =
      absl::AnyInvocable<void(absl::StatusOr<v1::SaveSnapshotReply>) &&>;
  virtual void SaveSnapshot(const std::string& job, const std::string& name,
                            SaveDone done) = 0;
  // Starts to drain; returns at once, the process exits when it is done.
  virtual void Drain() = 0;
};

}  // namespace ballast::service

#endif  // SERVER_SERVICE_NODE_CONTROL_H_
