#include "server/daemon/rpc_metrics.h"

#include <string>

#include "server/session/limits.h"

namespace ballast::daemon {
namespace {

using metrics::Family;

std::string_view AttachOutcome(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return "ok";
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return "denied_identity";
    case absl::StatusCode::kResourceExhausted:
      return "denied_quota";
    case absl::StatusCode::kUnavailable:
      return "unavailable";
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return "internal";
    default:
      return "invalid";
  }
}

}  // namespace

void RpcMetrics::OnRpcDone(std::string_view method,
                           const absl::Status& status) {
  const absl::StatusCode code = status.code();
  const std::string text = absl::StatusCodeToString(code);
  metrics_->counter(Family::kRpcRequests, {method, text})->Increment();
  if (method != "Attach") return;
  metrics_->counter(Family::kClientAttaches, {AttachOutcome(code)})
      ->Increment();
  if (code == absl::StatusCode::kResourceExhausted) {
    const bool is_memory = session::IsForMemory(status);
    metrics_
        ->counter(Family::kAdmissionRejections,
                  {is_memory ? "memory" : "limit"})
        ->Increment();
  } else if (session::IsForDraining(status)) {
    metrics_->counter(Family::kAdmissionRejections, {"draining"})->Increment();
  }
}

}  // namespace ballast::daemon
