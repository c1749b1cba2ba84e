#include "server/transport/inproc/inproc_peer_link.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ballast::transport {

class InprocPeerLink final : public PeerLink {
 public:
  InprocPeerLink(InprocPeerNetwork* network, uint64_t id, NodeRank self,
                 base::Executor* executor)
      : network_(network), id_(id), self_(self), executor_(executor) {}
  ~InprocPeerLink() override { network_->nodes_.erase(self_); }

  NodeRank self() const override { return self_; }
  void SetObserver(PeerLinkObserver* observer) override {
    observer_ = observer;
  }
  absl::Status Send(NodeRank to, std::string frame) override {
    return network_->Send(self_, to, std::move(frame));
  }

  uint64_t id() const { return id_; }
  base::Executor* executor() { return executor_; }
  void Receive(NodeRank from, std::string frame) {
    if (observer_ != nullptr) observer_->OnFrame(from, std::move(frame));
  }

 private:
  InprocPeerNetwork* const network_;
  const uint64_t id_;
  const NodeRank self_;
  base::Executor* const executor_;
  PeerLinkObserver* observer_ = nullptr;
};

InprocPeerNetwork::InprocPeerNetwork(LinkModel* links) : links_(links) {}

InprocPeerNetwork::~InprocPeerNetwork() = default;

absl::StatusOr<std::unique_ptr<PeerLink>> InprocPeerNetwork::AddNode(
    NodeRank node, base::Executor* executor) {
  if (nodes_.contains(node)) {
    return absl::AlreadyExistsError(
        absl::StrCat("node ", node.value(), " has a peer link"));
  }
  auto link =
      std::make_unique<InprocPeerLink>(this, next_id_++, node, executor);
  nodes_.emplace(node, link.get());
  return link;
}

absl::Status InprocPeerNetwork::Send(NodeRank from, NodeRank to,
                                     std::string frame) {
  if (frame.size() > kMaxFrameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame of ", frame.size(), " bytes; at most ",
                     kMaxFrameBytes, " are allowed"));
  }
  if (from == to) {
    Deliver(from, to, std::move(frame));
    return absl::OkStatus();
  }
  links_->CountBytes(from, to, frame.size());
  if (drop_ != nullptr && drop_(from, to, frame)) return absl::OkStatus();
  if (links_->DrawDuplicate()) {
    links_->CountBytes(from, to, frame.size());
    Carry(from, to, frame);
  }
  Carry(from, to, std::move(frame));
  return absl::OkStatus();
}

void InprocPeerNetwork::Carry(NodeRank from, NodeRank to, std::string frame) {
  if (links_->IsCut(from, to) || links_->DrawLoss()) return;
  const absl::Duration delay = links_->DrawDelay(frame.size());
  if (links_->DrawReorder()) {
    links_->executor()->PostAfter(
        delay, [this, from, to, frame = std::move(frame)]() mutable {
          Arrive(from, to, std::move(frame));
        });
    return;
  }
  // Whichever of a link's timers fires first brings its oldest frame.
  under_way_[{from, to}].push_back(std::move(frame));
  links_->executor()->PostAfter(delay, [this, from, to] {
    std::deque<std::string>& queue = under_way_[{from, to}];
    std::string oldest = std::move(queue.front());
    queue.pop_front();
    Arrive(from, to, std::move(oldest));
  });
}

void InprocPeerNetwork::Arrive(NodeRank from, NodeRank to, std::string frame) {
  // Cut while it was under way: lost too.
  if (!links_->IsCut(from, to)) Deliver(from, to, std::move(frame));
}

void InprocPeerNetwork::Deliver(NodeRank from, NodeRank to, std::string frame) {
  const auto it = nodes_.find(to);
  if (it == nodes_.end()) return;
  it->second->executor()->Post([this, from, to, id = it->second->id(),
                                frame = std::move(frame)]() mutable {
    // The node may have gone, or come back as another one.
    const auto now = nodes_.find(to);
    if (now == nodes_.end() || now->second->id() != id) return;
    now->second->Receive(from, std::move(frame));
  });
}

}  // namespace ballast::transport
