// A peer plane whose nodes have links from the start: those of the simulated
// networks. That nodes meet at all is membership's affair here.
//
// Threading: events of its daemon's SimProcess.
#ifndef TESTS_SIM_SIM_PEER_PLANE_H_
#define TESTS_SIM_SIM_PEER_PLANE_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/base/executor.h"
#include "server/daemon/peer_plane.h"

namespace ballast::sim {

class SimPeerPlane final : public daemon::PeerPlane {
 public:
  // Borrows all of them.
  SimPeerPlane(base::Executor* executor, transport::Transport* transport,
               transport::PeerLink* peer_link)
      : executor_(executor), transport_(transport), peer_link_(peer_link) {}

  std::string_view transport_name() const override { return "inproc"; }

  absl::Status Check(NodeRank node, const std::string&) const override {
    if (node == transport_->self()) return absl::OkStatus();
    return absl::InvalidArgumentError("a daemon of another node");
  }

  std::unique_ptr<daemon::Opening> Open(const daemon::LinksRequest&,
                                        Done done) override {
    auto opening = std::make_unique<SimOpening>();
    executor_->Post([this, alive = std::weak_ptr<int>(opening->alive),
                     done = std::move(done)]() mutable {
      if (alive.expired()) return;
      std::move(done)(std::make_unique<SimLinks>(transport_, peer_link_));
    });
    return opening;
  }

 private:
  struct SimOpening final : daemon::Opening {
    std::string WaitingFor() const override { return "the links"; }
    void GiveUp(const absl::Status&) override {}
    std::shared_ptr<int> alive = std::make_shared<int>(0);  // weak when posted
  };

  class SimLinks final : public daemon::JobLinks {
   public:
    SimLinks(transport::Transport* transport, transport::PeerLink* peer_link)
        : transport_(transport), peer_link_(peer_link) {}
    ~SimLinks() override { peer_link_->SetObserver(nullptr); }
    transport::Transport* transport() override { return transport_; }
    transport::PeerLink* peer_link() override { return peer_link_; }
    // Dead nodes show by their silence only.
    daemon::PeerState StateOf(NodeRank, absl::Status*) const override {
      return daemon::PeerState::kReady;
    }

   private:
    transport::Transport* const transport_;
    transport::PeerLink* const peer_link_;
  };

  base::Executor* const executor_;
  transport::Transport* const transport_;
  transport::PeerLink* const peer_link_;
};

}  // namespace ballast::sim

#endif  // TESTS_SIM_SIM_PEER_PLANE_H_
