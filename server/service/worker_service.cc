#include "server/service/worker_service.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "proto/handle_socket.h"
#include "proto/to_json.h"
#include "proto/worker.grpc.pb.h"
#include "server/base/status_macros.h"
#include "server/service/convert.h"
#include "server/service/responder.h"

namespace ballast::service {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

// A long call is answered this much before the client stops to listen, so
// that it hears the reason and not only that time has passed.
constexpr absl::Duration kMaxAnswerMargin = absl::Milliseconds(250);

absl::Duration TimeToAnswer(const CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) {
    return absl::InfiniteDuration();
  }
  const absl::Duration left =
      absl::FromChrono(deadline - std::chrono::system_clock::now());
  return std::max(absl::ZeroDuration(),
                  left - std::min(kMaxAnswerMargin, left / 5));
}

absl::StatusOr<std::string> Key(const CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  if (metadata.count(proto::kKeyMetadata) != 1) {
    return absl::UnauthenticatedError(
        "metadata \"ballast-key\" must be given once");
  }
  const grpc::string_ref key = metadata.find(proto::kKeyMetadata)->second;
  return std::string(key.data(), key.size());
}

class WorkerService final : public v1::WorkerService::CallbackService {
 public:
  explicit WorkerService(const WorkerServiceParts& parts) : parts_(parts) {}

  ServerUnaryReactor* GetServerInfo(CallbackServerContext* context,
                                    const v1::GetServerInfoRequest*,
                                    v1::GetServerInfoReply* reply) override {
    return Answer(context, "GetServerInfo", [this, reply](const std::string&) {
      *reply = parts_.node->ServerInfo();
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* Attach(CallbackServerContext* context,
                             const v1::AttachRequest* request,
                             v1::AttachReply* reply) override {
    // Parsed here: a list of 100,000 tensors is not the control thread's work.
    auto parsed = FromProto(*request);
    ServerUnaryReactor* const reactor = context->DefaultReactor();
    Responder responder(reactor, "Attach", parts_.observer);
    absl::StatusOr<std::string> key = Key(*context);
    const absl::Status refusal = key.ok() ? parsed.status() : key.status();
    if (!refusal.ok()) {
      responder.Finish(refusal);
      return reactor;
    }
    parts_.executor->Post([this, key = *std::move(key),
                           parsed = *std::move(parsed), reply,
                           responder = std::move(responder)]() mutable {
      parts_.sessions->AttachWhenKnown(
          key, std::move(parsed),
          [reply, responder = std::move(responder)](
              absl::StatusOr<session::AttachReply> result) mutable {
            if (result.ok()) *reply = ToProto(*result);
            responder.Finish(result.status());
          });
    });
    return reactor;
  }

  ServerUnaryReactor* Begin(CallbackServerContext* context,
                            const v1::BeginRequest*,
                            v1::BeginReply* reply) override {
    ServerUnaryReactor* const reactor = context->DefaultReactor();
    Responder responder(reactor, "Begin", parts_.observer);
    absl::StatusOr<std::string> key = Key(*context);
    if (!key.ok()) {
      responder.Finish(key.status());
      return reactor;
    }
    parts_.executor->Post([this, key = *std::move(key), reply,
                           timeout = TimeToAnswer(*context),
                           responder = std::move(responder)]() mutable {
      parts_.sessions->Begin(
          key, timeout,
          [reply, responder = std::move(responder)](
              absl::StatusOr<session::BeginReply> result) mutable {
            if (result.ok()) *reply = ToProto(*result);
            responder.Finish(result.status());
          });
    });
    return reactor;
  }

  ServerUnaryReactor* Detach(CallbackServerContext* context,
                             const v1::DetachRequest*,
                             v1::DetachReply*) override {
    return Answer(context, "Detach", [this](const std::string& key) {
      return parts_.sessions->Detach(key);
    });
  }

  ServerUnaryReactor* Close(CallbackServerContext* context,
                            const v1::CloseRequest*, v1::CloseReply*) override {
    return Answer(context, "Close", [this](const std::string& key) {
      return parts_.sessions->Close(key);
    });
  }

  ServerUnaryReactor* Save(CallbackServerContext* context,
                           const v1::SaveRequest* request,
                           v1::SaveReply* reply) override {
    ServerUnaryReactor* const reactor = context->DefaultReactor();
    Responder responder(reactor, "Save", parts_.observer);
    absl::StatusOr<std::string> key = Key(*context);
    if (!key.ok()) {
      responder.Finish(key.status());
      return reactor;
    }
    parts_.executor->Post([this, key = *std::move(key), request, reply,
                           responder = std::move(responder)]() mutable {
      const auto job = parts_.sessions->JobOf(key);
      if (!job.ok()) return responder.Finish(job.status());
      parts_.node->SaveSnapshot(
          (*job)->spec().name, request->name(),
          [reply, responder = std::move(responder)](
              absl::StatusOr<v1::SaveSnapshotReply> saved) mutable {
            if (saved.ok()) {
              reply->set_path(saved->path());
              reply->set_step(saved->step());
              reply->set_size_bytes(saved->size_bytes());
            }
            responder.Finish(saved.status());
          });
    });
    return reactor;
  }

  ServerUnaryReactor* GetStats(CallbackServerContext* context,
                               const v1::GetStatsRequest*,
                               v1::GetStatsReply* reply) override {
    return Answer(context, "GetStats", [this, reply](const std::string& key) {
      return DoGetStats(key, reply);
    });
  }

 private:
  // `answer` runs on the control thread with the caller's key; request and
  // reply live until Finish.
  template <typename Function>
  ServerUnaryReactor* Answer(CallbackServerContext* context,
                             std::string_view method, Function answer) {
    ServerUnaryReactor* const reactor = context->DefaultReactor();
    Responder responder(reactor, method, parts_.observer);
    absl::StatusOr<std::string> key = Key(*context);
    if (!key.ok()) {
      responder.Finish(key.status());
      return reactor;
    }
    parts_.executor->Post([key = *std::move(key), answer = std::move(answer),
                           responder = std::move(responder)]() mutable {
      responder.Finish(answer(key));
    });
    return reactor;
  }

  absl::Status DoGetStats(const std::string& key, v1::GetStatsReply* reply) {
    ASSIGN_OR_RETURN(const session::LocalJob* job, parts_.sessions->JobOf(key));
    ASSIGN_OR_RETURN(const v1::GetJobReply stats,
                     parts_.node->GetJob(job->spec().name));
    reply->set_json(proto::ToJson(stats).dump());
    return absl::OkStatus();
  }

  const WorkerServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerService(
    const WorkerServiceParts& parts) {
  return std::make_unique<WorkerService>(parts);
}

}  // namespace ballast::service
