#include "tests/sim/sim_peer_plane.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace ballast::sim {
namespace {

constexpr absl::Duration kPollSoon = absl::Milliseconds(50);
constexpr absl::Duration kPollLater = absl::Milliseconds(500);
constexpr absl::Duration kSoon = absl::Seconds(5);

bool IsReachable(const SimNetworks& networks, NodeRank self, NodeRank node) {
  return node == self || !networks.links->IsCut(self, node);
}

}  // namespace

class SimPeerPlane::Links final : public daemon::JobLinks {
 public:
  Links(SimPeerPlane* plane, const daemon::LinksRequest& request,
        std::map<int, uint64_t> members)
      : networks_(*plane->networks_),
        self_(plane->self_),
        rendezvous_(&plane->rendezvous_),
        request_(request),
        opened_(networks_.clock->Now()),
        members_(std::move(members)) {
    transport_ = networks_.exchanges->AddNode(self_, plane->executor_).value();
    if (networks_.wrap != nullptr) {
      wrapped_ = networks_.wrap(transport_.get(), plane->executor_);
    }
    peer_link_ = networks_.frames->AddNode(self_, plane->executor_).value();
    networks_.lives[self_.value()] = request.incarnation.value();
  }
  ~Links() override {
    networks_.lives.erase(self_.value());
    networks_.ends[self_.value()] = networks_.clock->Now();
    rendezvous_->Leave(request_.job, request_.incarnation);
  }

  transport::Transport* transport() override {
    return wrapped_ != nullptr ? wrapped_.get() : transport_.get();
  }
  transport::PeerLink* peer_link() override { return peer_link_.get(); }

  Incarnation IncarnationOf(NodeRank node) const override {
    const auto it = members_.find(node.value());
    return it == members_.end() ? Incarnation() : Incarnation(it->second);
  }

  // A closed link shows, unless the network between is cut: then its silence.
  daemon::PeerState StateOf(NodeRank node, absl::Status* why) const override {
    if (!IsReachable(networks_, self_, node)) return daemon::PeerState::kReady;
    const auto& lives = networks_.lives;
    const auto now = lives.find(node.value());
    if (now != lives.end() && !members_.contains(node.value())) {
      members_[node.value()] = now->second;
    }
    const auto met = members_.find(node.value());
    const auto end = networks_.ends.find(node.value());
    if (met == members_.end()) {
      if (end == networks_.ends.end() || end->second < opened_) {
        return daemon::PeerState::kConnecting;
      }
    } else if (now != lives.end() && now->second == met->second) {
      return daemon::PeerState::kReady;
    }
    *why = absl::UnavailableError(
        absl::StrCat("node ", node.value(), " has closed its links"));
    return daemon::PeerState::kFailed;
  }

 private:
  SimNetworks& networks_;
  const NodeRank self_;
  membership::Rendezvous* const rendezvous_;  // this node's
  const daemon::LinksRequest request_;
  const absl::Time opened_;
  mutable std::map<int, uint64_t> members_;  // lives, as they become known
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::Transport> wrapped_;  // null: none
  std::unique_ptr<transport::PeerLink> peer_link_;
};

class SimPeerPlane::Beginning final : public daemon::Opening {
 public:
  Beginning(SimPeerPlane* plane, const daemon::LinksRequest& request, Done done)
      : plane_(plane) {
    timer_ = plane->executor_->PostAfter(
        absl::ZeroDuration(),
        [this, request, done = std::move(done)]() mutable {
          timer_ = 0;
          Done last = std::move(done);  // it releases this
          std::move(last)(plane_->MakeLinks(request, {}));
        });
  }
  ~Beginning() override { plane_->executor_->Cancel(timer_); }

  std::string WaitingFor() const override { return "the links"; }
  void GiveUp(const absl::Status&) override {}

 private:
  SimPeerPlane* const plane_;
  base::TimerId timer_ = 0;
};

class SimPeerPlane::Meeting final : public daemon::Opening {
 public:
  Meeting(SimPeerPlane* plane, const daemon::LinksRequest& links, Done done)
      : plane_(plane),
        links_(links),
        started_(plane->networks_->clock->Now()),
        done_(std::move(done)) {
    request_.set_job(links.job);
    request_.set_node(links.node.value());
    request_.set_incarnation(links.incarnation.value());
    request_.set_node_name(absl::StrCat("host-", links.node.value()));
    request_.set_endpoint("simulated");
    *request_.mutable_join() = links.join;
    PollAfter(absl::ZeroDuration());
  }
  ~Meeting() override {
    plane_->executor_->Cancel(timer_);
    if (!is_linked_) {
      plane_->rendezvous_.Leave(links_.job, links_.incarnation);
    }
  }

  std::string WaitingFor() const override { return waiting_for_; }
  void GiveUp(const absl::Status& why) override {
    v1::RendezvousRequest request = request_;
    request.mutable_leave()->set_code(static_cast<int>(why.code()));
    request.mutable_leave()->set_text(std::string(why.message()));
    plane_->Poll(request).IgnoreError();
  }

 private:
  void PollAfter(absl::Duration delay) {
    timer_ = plane_->executor_->PostAfter(delay, [this] {
      timer_ = 0;
      OnReply(plane_->Poll(request_));
    });
  }

  void OnReply(const absl::StatusOr<v1::RendezvousReply>& reply) {
    const bool is_soon = plane_->networks_->clock->Now() - started_ < kSoon;
    if (absl::IsUnavailable(reply.status()) ||
        (reply.ok() && reply->members_size() == 0)) {
      waiting_for_ = reply.ok() ? reply->waiting_for()
                                : std::string(reply.status().message());
      return PollAfter((is_soon ? kPollSoon : kPollLater) +
                       plane_->networks_->links->DrawDelay(0));
    }
    Done done = std::move(done_);  // it releases this
    if (!reply.ok()) return std::move(done)(reply.status());
    is_linked_ = true;
    std::map<int, uint64_t> members;
    for (const v1::RendezvousMember& member : reply->members()) {
      members[member.node()] = member.incarnation();
    }
    std::move(done)(plane_->MakeLinks(links_, std::move(members)));
  }

  SimPeerPlane* const plane_;
  const daemon::LinksRequest links_;
  const absl::Time started_;
  v1::RendezvousRequest request_;
  Done done_;
  std::string waiting_for_ = "the other nodes";
  base::TimerId timer_ = 0;
  bool is_linked_ = false;
};

SimPeerPlane::SimPeerPlane(NodeRank self, base::Executor* executor,
                           SimNetworks* networks)
    : self_(self), executor_(executor), networks_(networks) {
  if (self == NodeRank(0)) networks->rendezvous = &rendezvous_;
}

SimPeerPlane::~SimPeerPlane() {
  if (networks_->rendezvous == &rendezvous_) networks_->rendezvous = nullptr;
}

void SimPeerPlane::Use(NodeRank self, SimNetworks* networks) {
  if (networks_->rendezvous == &rendezvous_) networks_->rendezvous = nullptr;
  self_ = self;
  networks_ = networks;
  if (self == NodeRank(0)) networks->rendezvous = &rendezvous_;
}

absl::Status SimPeerPlane::Check(NodeRank node, const std::string&) const {
  if (node == self_) return absl::OkStatus();
  return absl::InvalidArgumentError("a daemon of another node");
}

std::unique_ptr<daemon::Opening> SimPeerPlane::Open(
    const daemon::LinksRequest& request, Done done) {
  if (request.join.generation() == 0 && !networks_->meets_to_begin) {
    return std::make_unique<Beginning>(this, request, std::move(done));
  }
  return std::make_unique<Meeting>(this, request, std::move(done));
}

absl::StatusOr<v1::RendezvousReply> SimPeerPlane::Poll(
    const v1::RendezvousRequest& request) const {
  const auto loses = [this](bool is_reply) {
    return self_ != NodeRank(0) && networks_->loses_poll != nullptr &&
           networks_->loses_poll(self_.value(), is_reply);
  };
  const bool is_lost = (self_ != NodeRank(0) && networks_->links->DrawLoss()) ||
                       loses(/*is_reply=*/false);
  if (networks_->rendezvous == nullptr || networks_->stopped.contains(0) ||
      !IsReachable(*networks_, self_, NodeRank(0)) || is_lost) {
    return absl::UnavailableError("node 0 does not answer");
  }
  auto reply = networks_->rendezvous->Poll(request, networks_->clock->Now());
  if (loses(/*is_reply=*/true)) {
    return absl::UnavailableError("node 0 does not answer");
  }
  return reply;
}

std::unique_ptr<daemon::JobLinks> SimPeerPlane::MakeLinks(
    const daemon::LinksRequest& request, std::map<int, uint64_t> members) {
  return std::make_unique<Links>(this, request, std::move(members));
}

}  // namespace ballast::sim
