#include "server/daemon/ucx_peer_plane.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/service/peer_client.h"

namespace ballast::daemon {
namespace {

using transport::UcxTransport;

// A job whose nodes come at once starts at once; later there is no hurry.
constexpr absl::Duration kPollSoon = absl::Milliseconds(50);
constexpr absl::Duration kPollLater = absl::Milliseconds(500);
constexpr absl::Duration kSoon = absl::Seconds(5);
constexpr absl::Duration kCallTimeout = absl::Seconds(5);

// Equal on all nodes of a job before they have spoken (FNV-1a of its name):
// chunks and tokens of another job fail their checks.
uint64_t SeedOf(std::string_view job) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : job) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return hash;
}

class UcxJobLinks final : public JobLinks {
 public:
  UcxJobLinks(std::unique_ptr<UcxTransport> transport,
              v1::RendezvousReply members, absl::AnyInvocable<void()> closed)
      : transport_(std::move(transport)),
        members_(std::move(members)),
        closed_(std::move(closed)) {}
  ~UcxJobLinks() override {
    transport_.reset();
    closed_();
  }

  transport::Transport* transport() override { return transport_.get(); }
  transport::PeerLink* peer_link() override { return transport_->peer_link(); }

  Incarnation IncarnationOf(NodeRank node) const override {
    return Incarnation(members_.members(node.value()).incarnation());
  }

  PeerState StateOf(NodeRank node, absl::Status* why) const override {
    const absl::Status status = transport_->PeerStatus(node);
    if (status.ok()) {
      // Nothing came yet: the peer has not connected.
      return transport_->PeerCounters(node).wire_received == 0
                 ? PeerState::kConnecting
                 : PeerState::kReady;
    }
    *why = absl::Status(
        status.code(),
        absl::StrCat(
            std::string(status.message()), " (node ", node.value(), " is on ",
            base::Quoted(members_.members(node.value()).node_name()), ")"));
    return PeerState::kFailed;
  }

 private:
  std::unique_ptr<UcxTransport> transport_;
  const v1::RendezvousReply members_;  // by node rank
  absl::AnyInvocable<void()> closed_;
};

class UcxOpening final : public Opening {
 public:
  UcxOpening(const UcxPeerPlane::Options& options,
             const UcxPeerPlane::Parts& parts, const LinksRequest& request,
             PeerPlane::Done done)
      : ucx_(options.ucx),
        goes_on_(request.join.generation() > 0),
        parts_(parts),
        address_(request.coordinator.empty() ? options.coordinator
                                             : request.coordinator),
        started_(parts.clock->Now()),
        done_(std::move(done)) {
    request_.set_job(request.job);
    request_.set_node(request.node.value());
    request_.set_incarnation(request.incarnation.value());
    request_.set_node_name(options.node_name);
    *request_.mutable_join() = request.join;
    ucx_.protocol.exchanges.checksum_seed = SeedOf(request.job);
    if (request.node != NodeRank(0)) {
      client_ = service::PeerClient::Create(address_, parts.executor);
    }
    PollAfter(absl::ZeroDuration());
  }

  ~UcxOpening() override {
    parts_.executor->Cancel(timer_);
    if (!is_linked_) Leave();
  }

  std::string WaitingFor() const override {
    return waiting_for_.empty() ? "the other nodes" : waiting_for_;
  }

  void GiveUp(const absl::Status& why) override {
    v1::RendezvousRequest request = request_;
    request.mutable_leave()->set_code(static_cast<int>(why.code()));
    request.mutable_leave()->set_text(
        std::string(why.message().substr(0, kMaxTextBytes)));
    if (client_ != nullptr) {
      client_->Tell(request, kCallTimeout);
    } else {
      parts_.rendezvous->Poll(request, parts_.clock->Now()).IgnoreError();
    }
  }

 private:
  void PollAfter(absl::Duration delay) {
    timer_ = parts_.executor->PostAfter(delay, [this] {
      timer_ = 0;
      Poll();
    });
  }

  absl::Status MakeTransport() {
    if (transport_ != nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(transport_,
                     UcxTransport::Create(ucx_, NodeRank(request_.node()),
                                          Incarnation(request_.incarnation()),
                                          parts_.clock, parts_.executor));
    request_.set_endpoint(transport_->LocalToken());
    return absl::OkStatus();
  }

  void Poll() {
    const absl::Status made = MakeTransport();
    if (!made.ok() && !goes_on_) return End(made);
    if (!made.ok()) {
      // The device of a link that is down has gone too, and may come again.
      waiting_for_ = absl::StrCat("this node has no network: ", made.message());
      return PollAgain();
    }
    if (client_ == nullptr) {
      OnReply(parts_.rendezvous->Poll(request_, parts_.clock->Now()));
      return;
    }
    client_->Rendezvous(request_, kCallTimeout,
                        [this](absl::StatusOr<v1::RendezvousReply> reply) {
                          OnReply(std::move(reply));
                        });
  }

  void OnReply(absl::StatusOr<v1::RendezvousReply> reply) {
    const absl::Status& status = reply.status();
    if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
      waiting_for_ =
          absl::StrCat("node 0 at ", address_,
                       " does not answer: ", std::string(status.message()));
      return PollAgain();
    }
    if (!status.ok()) {
      return End(absl::Status(
          status.code(),
          absl::StrCat("node 0", client_ != nullptr ? " at " : "",
                       client_ != nullptr ? address_ : "",
                       " refuses: ", std::string(status.message()))));
    }
    if (reply->members_size() == 0) {
      waiting_for_ = reply->waiting_for().substr(0, kMaxTextBytes);
      return PollAgain();
    }
    const absl::Status linked = Link(*reply);
    if (linked.ok() || !goes_on_) return End(linked);
    // They meet once more.
    End(absl::UnavailableError(linked.message()));
  }

  void PollAgain() {
    const bool is_soon = parts_.clock->Now() - started_ < kSoon;
    PollAfter(is_soon ? kPollSoon : kPollLater);
  }

  // The reply is hostile input (I27); tokens are checked by Connect.
  absl::Status Link(const v1::RendezvousReply& reply) {
    if (reply.members_size() != request_.join().num_nodes()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "node 0 at ", address_, " knows ", reply.members_size(),
          " nodes of this job, this node ", request_.join().num_nodes()));
    }
    for (int n = 0; n < reply.members_size(); ++n) {
      if (reply.members(n).node() != n) {
        return absl::InvalidArgumentError(absl::StrCat(
            "node 0 at ", address_, " does not list the nodes in order"));
      }
      if (n == request_.node()) continue;
      RETURN_IF_ERROR(
          transport_->Connect(NodeRank(n), reply.members(n).endpoint(),
                              Incarnation(reply.members(n).incarnation())));
    }
    members_ = reply;
    return absl::OkStatus();
  }

  void End(const absl::Status& status) {
    PeerPlane::Done done = std::move(done_);  // it may release this
    if (!status.ok()) return std::move(done)(status);
    is_linked_ = true;
    auto links = std::make_unique<UcxJobLinks>(
        std::move(transport_), std::move(members_),
        [rendezvous = parts_.rendezvous, request = request_] {
          if (request.node() != 0) return;
          rendezvous->Leave(request.job(), Incarnation(request.incarnation()));
        });
    std::move(done)(std::move(links));
  }

  void Leave() {
    if (request_.node() != 0) return;
    parts_.rendezvous->Leave(request_.job(),
                             Incarnation(request_.incarnation()));
  }

  static constexpr size_t kMaxTextBytes = 512;

  UcxTransport::Options ucx_;
  const bool goes_on_;  // with a job whose links were lost
  const UcxPeerPlane::Parts parts_;
  const std::string address_;
  const absl::Time started_;
  v1::RendezvousRequest request_;
  PeerPlane::Done done_;
  std::unique_ptr<UcxTransport> transport_;      // null: not yet made
  std::unique_ptr<service::PeerClient> client_;  // null on node 0
  v1::RendezvousReply members_;
  std::string waiting_for_;
  base::TimerId timer_ = 0;
  bool is_linked_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<UcxPeerPlane>> UcxPeerPlane::Create(
    const Options& options, const Parts& parts) {
  // A transport of nobody, only to hear of wrong options now.
  UcxTransport::Options probe = options.ucx;
  probe.has_thread = false;
  RETURN_IF_ERROR(UcxTransport::Create(probe, NodeRank(0), Incarnation(1),
                                       parts.clock, parts.executor)
                      .status());
  return std::unique_ptr<UcxPeerPlane>(new UcxPeerPlane(options, parts));
}

absl::Status UcxPeerPlane::Check(NodeRank node,
                                 const std::string& coordinator) const {
  if (node == NodeRank(0)) return absl::OkStatus();
  const std::string& address =
      coordinator.empty() ? options_.coordinator : coordinator;
  if (address.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "node ", node.value(),
        " does not know where node 0 is: give coordinator=\"host:port\" (its "
        "listen.peer) or BALLAST_COORDINATOR to the workers, or "
        "node.coordinator to the daemon"));
  }
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || address.size() > 255 ||
      colon + 1 == address.size() ||
      address.find_first_not_of("0123456789", colon + 1) != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "coordinator is ", base::Quoted(address), ", must be host:port"));
  }
  return absl::OkStatus();
}

std::unique_ptr<Opening> UcxPeerPlane::Open(const LinksRequest& request,
                                            Done done) {
  return std::make_unique<UcxOpening>(options_, parts_, request,
                                      std::move(done));
}

}  // namespace ballast::daemon
