#include "server/service/admin_service.h"

#include <string>
#include <utility>

#include "proto/admin.grpc.pb.h"
#include "server/service/responder.h"

namespace ballast::service {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

class AdminService final : public v1::AdminService::CallbackService {
 public:
  explicit AdminService(const AdminServiceParts& parts) : parts_(parts) {}

  ServerUnaryReactor* Version(CallbackServerContext* context,
                              const v1::VersionRequest*,
                              v1::VersionReply* reply) override {
    return Answer(context, "Version", [this, reply] {
      *reply = parts_.node->Version();
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* Status(CallbackServerContext* context,
                             const v1::StatusRequest*,
                             v1::StatusReply* reply) override {
    return Answer(context, "Status", [this, reply] {
      *reply = parts_.node->Status();
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* ListJobs(CallbackServerContext* context,
                               const v1::ListJobsRequest*,
                               v1::ListJobsReply* reply) override {
    return Answer(context, "ListJobs", [this, reply] {
      *reply = parts_.node->ListJobs();
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* GetJob(CallbackServerContext* context,
                             const v1::GetJobRequest* request,
                             v1::GetJobReply* reply) override {
    return Answer(context, "GetJob", [this, request, reply] {
      absl::StatusOr<v1::GetJobReply> job =
          parts_.node->GetJob(request->name());
      if (job.ok()) *reply = *std::move(job);
      return job.status();
    });
  }

  ServerUnaryReactor* AdoptJob(CallbackServerContext* context,
                               const v1::AdoptJobRequest* request,
                               v1::AdoptJobReply*) override {
    return Answer(context, "AdoptJob", [this, request] {
      return parts_.node->AdoptJob(request->name());
    });
  }

  ServerUnaryReactor* SaveSnapshot(CallbackServerContext* context,
                                   const v1::SaveSnapshotRequest* request,
                                   v1::SaveSnapshotReply* reply) override {
    ServerUnaryReactor* const reactor = context->DefaultReactor();
    parts_.executor->Post([this, request, reply,
                           responder = Responder(reactor, "SaveSnapshot",
                                                 parts_.observer)]() mutable {
      parts_.node->SaveSnapshot(
          request->job(), request->name(),
          [reply, responder = std::move(responder)](
              absl::StatusOr<v1::SaveSnapshotReply> saved) mutable {
            if (saved.ok()) *reply = *saved;
            responder.Finish(saved.status());
          });
    });
    return reactor;
  }

  ServerUnaryReactor* Drain(CallbackServerContext* context,
                            const v1::DrainRequest*, v1::DrainReply*) override {
    return Answer(context, "Drain", [this] {
      parts_.node->Drain();
      return absl::OkStatus();
    });
  }

 private:
  // `answer` runs on the control thread; request and reply live until Finish.
  template <typename Function>
  ServerUnaryReactor* Answer(CallbackServerContext* context,
                             std::string_view method, Function answer) {
    ServerUnaryReactor* const reactor = context->DefaultReactor();
    parts_.executor->Post(
        [responder = Responder(reactor, method, parts_.observer),
         answer = std::move(answer)]() mutable { responder.Finish(answer()); });
    return reactor;
  }

  const AdminServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(
    const AdminServiceParts& parts) {
  return std::make_unique<AdminService>(parts);
}

}  // namespace ballast::service
