// Calls, attaches and refusals as metrics.
//
// Threading: thread-safe. `metrics` outlives it.
#ifndef SERVER_DAEMON_RPC_METRICS_H_
#define SERVER_DAEMON_RPC_METRICS_H_

#include <string_view>

#include "absl/status/status.h"
#include "server/metrics/metrics.h"
#include "server/service/rpc_observer.h"

namespace ballast::daemon {

class RpcMetrics final : public service::RpcObserver {
 public:
  explicit RpcMetrics(metrics::Metrics* metrics) : metrics_(metrics) {}

  void OnRpcDone(std::string_view method, const absl::Status& status) override;

 private:
  metrics::Metrics* const metrics_;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_RPC_METRICS_H_
