#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/base/clock.h"
#include "server/base/event_loop.h"
#include "server/transport/pulls_conformance.h"
#include "server/transport/ucx/ucx_transport.h"

namespace ballast::transport {
namespace {

constexpr int kMaxTurns = 1000000;  // of loops that wait for something

// Nodes of one process over the loopback device, all connected.
class UcxPullCluster final : public PullTestCluster {
 public:
  UcxPullCluster(int num_nodes, bool has_thread) : has_thread_(has_thread) {
    UcxTransport::Options options;
    options.wire.devices = "lo";
    options.protocol.exchanges.chunk_bytes = 4096;
    options.has_thread = has_thread;
    for (int i = 0; i < num_nodes; ++i) {
      nodes_.push_back(UcxTransport::Create(options, NodeRank(i),
                                            Incarnation(i + 1), &clock_,
                                            loop_.get())
                           .value());
    }
    for (int i = 0; i < num_nodes; ++i) {
      for (int j = 0; j < num_nodes; ++j) {
        if (i == j) continue;
        EXPECT_TRUE(nodes_[i]
                        ->Connect(NodeRank(j), nodes_[j]->LocalToken(),
                                  Incarnation(j + 1))
                        .ok());
      }
    }
  }

  Transport* transport(int rank) override { return nodes_[rank].get(); }
  PeerLink* link(int rank) override { return nodes_[rank]->peer_link(); }
  base::Executor* executor(int) override { return loop_.get(); }
  void Kill(int rank) override { nodes_[rank].reset(); }
  bool RunUntil(absl::FunctionRef<bool()> condition) override {
    for (int turn = 0; turn < kMaxTurns; ++turn) {
      if (condition()) return true;
      Turn();
    }
    return false;
  }
  void Settle() override {
    for (int turn = 0; turn < (has_thread_ ? 200 : 3000); ++turn) Turn();
  }

 private:
  void Turn() {
    if (has_thread_) return loop_->RunOnce(absl::Microseconds(100));
    for (auto& node : nodes_) {
      if (node != nullptr) node->RunOnce(absl::ZeroDuration());
    }
    loop_->RunOnce(absl::ZeroDuration());
  }

  const bool has_thread_;
  base::MonotonicClock clock_;
  std::unique_ptr<base::EventLoop> loop_ =
      base::EventLoop::Create(&clock_).value();
  std::vector<std::unique_ptr<UcxTransport>> nodes_;
};

template <bool kHasThread>
std::unique_ptr<PullTestCluster> Make(int num_nodes) {
  return std::make_unique<UcxPullCluster>(num_nodes, kHasThread);
}

INSTANTIATE_TEST_SUITE_P(Ucx, PullsConformance,
                         ::testing::Values(&Make<false>));
INSTANTIATE_TEST_SUITE_P(UcxThreads, PullsConformance,
                         ::testing::Values(&Make<true>));

}  // namespace
}  // namespace ballast::transport
