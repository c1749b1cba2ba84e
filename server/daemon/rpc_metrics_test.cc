#include "server/daemon/rpc_metrics.h"

#include "gtest/gtest.h"
#include "server/session/limits.h"

namespace ballast::daemon {
namespace {

using metrics::Family;

TEST(RpcMetricsTest, RefusalsAreCountedByTheirReason) {
  metrics::Metrics metrics({});
  RpcMetrics rpc(&metrics);
  const absl::Status full = absl::ResourceExhaustedError("no room");
  rpc.OnRpcDone("Attach", absl::OkStatus());
  rpc.OnRpcDone("Attach", absl::InvalidArgumentError("lr"));
  rpc.OnRpcDone("Attach", full);
  rpc.OnRpcDone("Attach", session::ForMemory(full));
  rpc.OnRpcDone("Attach", session::ForMemory(full));
  rpc.OnRpcDone("Save", session::ForMemory(full));
  const absl::Status away = absl::UnavailableError("try again");
  rpc.OnRpcDone("Attach", away);  // its last life is just ending
  rpc.OnRpcDone("Attach", away);
  rpc.OnRpcDone("Attach", session::ForDraining(away));
  rpc.OnRpcDone("Save", session::ForDraining(away));
  const auto rejected = [&](const char* reason) {
    return metrics.counter(Family::kAdmissionRejections, {reason})->value();
  };
  EXPECT_EQ(rejected("limit"), 1);
  EXPECT_EQ(rejected("memory"), 2);
  EXPECT_EQ(rejected("draining"), 1);
  const auto attaches = [&](const char* outcome) {
    return metrics.counter(Family::kClientAttaches, {outcome})->value();
  };
  EXPECT_EQ(attaches("ok"), 1);
  EXPECT_EQ(attaches("invalid"), 1);
  EXPECT_EQ(attaches("denied_quota"), 3);
  EXPECT_EQ(attaches("unavailable"), 3);
}

}  // namespace
}  // namespace ballast::daemon
