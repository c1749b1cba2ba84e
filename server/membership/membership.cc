#include "server/membership/membership.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "server/base/failpoint.h"
#include "server/membership/coordinator.h"
#include "server/membership/member.h"
#include "server/membership/outcome_log.h"

namespace ballast::membership {
namespace {

constexpr absl::Duration kTick = absl::Seconds(1);
constexpr NodeRank kCoordinator{0};

class MembershipImpl final : public Membership {
 public:
  explicit MembershipImpl(const Parts& parts)
      : parts_(parts),
        member_options_{.join_timeout = parts.join_timeout,
                        .peer_timeout = parts.peer_timeout},
        log_(parts.outcomes != nullptr ? parts.outcomes : &own_log_),
        alive_(std::make_shared<int>(0)) {
    if (parts.node != kCoordinator) return;
    coordinator_.emplace(
        Coordinator{.options = {.num_nodes = parts.num_nodes,
                                .optimizer = parts.optimizer,
                                .gradient_clipping = parts.gradient_clipping,
                                .metered = parts.metered,
                                .budget = parts.budget,
                                .join_timeout = parts.join_timeout,
                                .vote_timeout = parts.vote_timeout,
                                .peer_timeout = parts.peer_timeout},
                    .state = {}});
    coordinator_->state =
        InitialCoordinatorState(coordinator_->options, parts.optimizer_step);
    coordinator_->state.last = log_->last();
  }

  ~MembershipImpl() override {
    if (tick_ != 0) parts_.executor->Cancel(tick_);
  }

  void Join(const v1::Join& join) override {
    if (parts_.num_nodes > 1 && tick_ == 0) ArmTick();
    OnMember(JoinWish{join});
  }

  void Ready() override { OnMember(ReadyWish{}); }

  void CastVote(const v1::Vote& vote) override { OnMember(VoteWish{vote}); }

  void Leave(absl::Status why) override {
    // After an error the caller may delete this: what the coordinator here has
    // to say to the others is said before Leave returns (Ask).
    OnMember(LeaveWish{std::move(why)});
  }

  void Relink(absl::Status why) override {
    OnMember(LeaveWish{std::move(why), /*relinks=*/true});
  }

  void OnFrame(NodeRank from, const v1::PeerFrame& frame) override {
    if (frame.job() != parts_.job || frame.from() != from.value() ||
        from == parts_.node) {
      ++dropped_frames_;
      return;
    }
    if (frame.has_join() || frame.has_ready() || frame.has_vote()) {
      ToCoordinator(from, frame);
    } else if (frame.has_leave() && coordinator_.has_value()) {
      ToCoordinator(from, frame);
    } else if (from == kCoordinator &&
               frame.to_incarnation() == parts_.incarnation.value()) {
      OnMember(CoordinatorFrame{frame});
    } else {
      ++dropped_frames_;
    }
  }

  absl::StatusOr<Step> HoldSteps() override {
    if (!coordinator_.has_value() ||
        coordinator_->state.phase != CoordinatorState::Phase::kOpen) {
      return absl::FailedPreconditionError(
          "no step of the job is open on this node, or it is not node 0");
    }
    OnCoordinator(HoldEvent{true});
    return coordinator_->state.open_step;
  }

  void ReleaseSteps() override {
    if (coordinator_.has_value()) OnCoordinator(HoldEvent{false});
  }

  BudgetState budget() const override {
    return coordinator_.has_value() ? coordinator_->state.budget
                                    : BudgetState();
  }
  void RestoreBudget(BudgetState state) override {
    if (coordinator_.has_value()) {
      coordinator_->state.budget = std::move(state);
    }
  }

  Generation generation() const override { return member_.generation; }
  int64_t dropped_frames() const override { return dropped_frames_; }

  std::string WaitingFor() const override {
    const absl::Time now = parts_.clock->Now();
    const std::string mine = membership::WaitingFor(member_, now);
    if (mine.empty() || !coordinator_.has_value()) return mine;
    const std::string ours = membership::WaitingFor(coordinator_->state, now);
    return ours.empty() ? mine : ours;
  }

 private:
  struct Coordinator {
    CoordinatorOptions options;
    CoordinatorState state;
  };

  void ArmTick() {
    tick_ = parts_.executor->PostAfter(kTick, [this] {
      ArmTick();
      if (coordinator_.has_value()) OnCoordinator(TickEvent{});
      OnMember(MemberTick{});
    });
  }

  void ToCoordinator(NodeRank from, const v1::PeerFrame& frame) {
    if (!coordinator_.has_value()) {
      ++dropped_frames_;
      return;
    }
    OnCoordinator(PeerEvent{from, frame});
  }

  void OnCoordinator(const CoordinatorEvent& event) {
    const Actions actions = Decide(coordinator_->options, event,
                                   parts_.clock->Now(), &coordinator_->state);
    for (const Action& action : actions) {
      if (action.kind == Action::Kind::kDrop) ++dropped_frames_;
      if (action.kind == Action::Kind::kRecord) {
        BALLAST_FAILPOINT("membership.decided");
        const absl::Status recorded =
            log_->Record(action.frame, coordinator_->state.budget);
        if (recorded.ok()) continue;
        coordinator_->state.phase = CoordinatorState::Phase::kEnded;
        SendToAll(LeaveFrame(recorded));
        return;
      }
      if (action.kind != Action::Kind::kSend) continue;
      if (action.to.has_value()) {
        SendTo(*action.to, action.frame);
      } else {
        SendToAll(action.frame);
      }
    }
  }

  void OnMember(const MemberEvent& event) {
    const Actions actions =
        Decide(member_options_, event, parts_.clock->Now(), &member_);
    for (const Action& action : actions) {
      if (action.kind == Action::Kind::kDrop) ++dropped_frames_;
      if (action.kind == Action::Kind::kSend) Ask(action.frame);
      if (action.kind == Action::Kind::kNotify) Notify(action.frame);
    }
  }

  void Notify(const v1::PeerFrame& frame) {
    if (frame.has_view()) {
      parts_.observer->OnView(Generation(frame.generation()), frame.view());
    } else if (frame.has_start()) {
      parts_.observer->OnStart();
    } else if (frame.has_commit()) {
      parts_.observer->OnCommit(frame.commit());
    } else if (frame.has_abort()) {
      parts_.observer->OnAbort(frame.abort());
    } else if (frame.has_heal()) {
      parts_.observer->OnHeal(frame.heal());
    } else if (frame.has_leave()) {
      const absl::Status why =
          ToStatus(frame.leave().code(), frame.leave().text());
      frame.leave().relinks() ? parts_.observer->OnLost(why)
                              : parts_.observer->OnEnded(why);
    }
  }

  // The coordinator's voice.
  void SendToAll(const v1::PeerFrame& frame) {
    for (int n = 0; n < parts_.num_nodes; ++n) SendTo(NodeRank(n), frame);
  }
  void SendTo(NodeRank to, v1::PeerFrame frame) {
    if (frame.to_incarnation() == 0) {  // a refusal names it by itself
      const NodeState& node = coordinator_->state.nodes[to.value()];
      frame.set_to_incarnation(node.incarnation.value());
    }
    if (to != parts_.node) {
      SendOut(to, frame);
      return;
    }
    Post([this, frame = Sealed(std::move(frame))] {
      OnMember(CoordinatorFrame{frame});
    });
  }

  // The member's voice.
  void Ask(const v1::PeerFrame& frame) {
    if (parts_.node != kCoordinator) {
      SendOut(kCoordinator, frame);
    } else if (member_.phase == MemberState::Phase::kEnded) {
      ToCoordinator(parts_.node, Sealed(frame));
    } else {
      Post(
          [this, frame = Sealed(frame)] { ToCoordinator(parts_.node, frame); });
    }
  }

  void SendOut(NodeRank to, const v1::PeerFrame& frame) {
    if (parts_.link != nullptr) parts_.link->Send(to, Sealed(frame));
  }

  v1::PeerFrame Sealed(v1::PeerFrame frame) const {
    frame.set_job(parts_.job);
    frame.set_from(parts_.node.value());
    frame.set_incarnation(parts_.incarnation.value());
    return frame;
  }

  void Post(absl::AnyInvocable<void() &&> fn) {
    parts_.executor->Post(
        [alive = std::weak_ptr<int>(alive_), fn = std::move(fn)]() mutable {
          if (!alive.expired()) std::move(fn)();
        });
  }

  const Parts parts_;
  const MemberOptions member_options_;
  MemoryOutcomeLog own_log_;
  OutcomeLog* const log_;
  std::optional<Coordinator> coordinator_;  // on node 0
  MemberState member_;
  base::TimerId tick_ = 0;
  int64_t dropped_frames_ = 0;
  std::shared_ptr<int> alive_;  // weak in what is posted
};

}  // namespace

std::unique_ptr<Membership> Membership::Create(const Parts& parts) {
  return std::make_unique<MembershipImpl>(parts);
}

}  // namespace ballast::membership
