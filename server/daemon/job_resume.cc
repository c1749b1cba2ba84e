#include "server/daemon/job_resume.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/names.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/manifest.h"

namespace ballast::daemon {
namespace {

constexpr absl::Duration kRepeatEvery = absl::Milliseconds(200);
// Of a file that a whole job waits for.
constexpr int kSlicesAtOnce = 4;
constexpr size_t kMaxTextBytes = 500;

// From node 0, whose words are checked as any peer's.
absl::StatusOr<snapshot::HeldChoice> ToHeld(const v1::ResumeChoice& choice,
                                            int num_nodes) {
  snapshot::HeldChoice held;
  held.step = choice.step();
  held.checksum = choice.checksum();
  held.manifest_bytes = choice.manifest_bytes();
  for (const v1::Holders& holders : choice.holders()) {
    std::vector<NodeRank>& nodes = held.holders.emplace_back();
    for (const int node : holders.nodes()) {
      if (node < 0 || node >= num_nodes) {
        return absl::InvalidArgumentError(
            absl::StrCat("node 0 names node ", node, " of ", num_nodes));
      }
      nodes.push_back(NodeRank(node));
    }
    if (nodes.empty()) {
      return absl::InvalidArgumentError("node 0 names no holder of a shard");
    }
  }
  if (held.num_shards() < 1 || held.num_shards() > snapshot::kMaxNodes ||
      held.step < 0 || held.manifest_bytes == 0 ||
      held.manifest_bytes > snapshot::kMaxManifestBytes) {
    return absl::InvalidArgumentError("node 0 names no possible replica");
  }
  return held;
}

std::string Describe(const snapshot::HeldChoice& held) {
  const std::vector<NodeRank> nodes = held.Nodes();
  std::string text = absl::StrCat("replica of step ", held.step, " held by ",
                                  nodes.size() == 1 ? "node " : "nodes ");
  for (size_t i = 0; i < nodes.size(); ++i) {
    absl::StrAppend(&text,
                    i == 0                  ? ""
                    : i + 1 == nodes.size() ? " and "
                                            : ", ",
                    nodes[i].value());
  }
  return text;
}

}  // namespace

JobResume::JobResume(Parts parts)
    : parts_(std::move(parts)),
      io_(parts_.io),
      loading_(parts_.files, parts_.io),
      courier_(CourierParts()),
      replica_load_(
          {.job = parts_.options.job,
           .node = parts_.node,
           .identity = parts_.identity,
           .target = parts_.target,
           .held = parts_.held,
           .io = parts_.io,
           .courier = parts_.options.num_nodes > 1 ? &courier_ : nullptr,
           .on_idle = parts_.on_idle}),
      alive_(std::make_shared<int>(0)) {}

snapshot::ShardCourier::Parts JobResume::CourierParts() {
  snapshot::ShardCourier::Parts parts;
  parts.clock = parts_.clock;
  parts.executor = parts_.executor;
  parts.find = [this](int64_t version, int shard) {
    return Find(version, shard);
  };
  parts.window = kSlicesAtOnce;
  return parts;
}

JobResume::~JobResume() { parts_.executor->Cancel(timer_); }

void JobResume::Post(absl::AnyInvocable<void() &&> fn) {
  parts_.executor->Post(
      [alive = std::weak_ptr<int>(alive_), fn = std::move(fn)]() mutable {
        if (!alive.expired()) std::move(fn)();
      });
}

bool JobResume::is_idle() const {
  return io_.is_idle() && !loading_.is_busy() && replica_load_.is_idle();
}

std::string JobResume::WaitingFor() const {
  if (!is_running()) return "";
  if (choice_.round() > 0 && !offer_.loaded() && offer_.code() == 0) {
    return choice_.from() == v1::ResumeChoice::FILES
               ? absl::StrCat("this node reads snapshot ", parts_.stored->path)
               : absl::StrCat("this node reads the ", result_.source);
  }
  const std::string waiting =
      is_coordinator() ? council_->WaitingFor() : blocked_;
  return waiting.empty() ? "what the nodes hold of the job is compared"
                         : waiting;
}

// ---- What this node holds. ----

std::shared_ptr<snapshot::HeldFile> JobResume::Find(int64_t version,
                                                    int shard) const {
  const auto set = std::ranges::find(sets_, version, &snapshot::HeldSet::step);
  if (set == sets_.end() || shard < 0 || shard > set->num_shards) {
    return nullptr;
  }
  return parts_.held->Find(absl::StrCat(
      parts_.options.job, "/", snapshot::StepName(version), "/",
      shard == set->num_shards ? snapshot::kManifestName
                               : snapshot::ShardName(shard, set->num_shards)));
}

void JobResume::Start(transport::Pulls* pulls, bool has_initial_values,
                      Done done) {
  done_ = std::move(done);
  if (is_coordinator()) {
    ResumeCouncil::Options options = parts_.options;
    options.has_initial_values = has_initial_values;
    council_ = std::make_unique<ResumeCouncil>(std::move(options));
  }
  if (pulls != nullptr) courier_.SetPulls(pulls);
  auto sets = std::make_shared<std::vector<snapshot::HeldSet>>();
  io_.Run(
      [sets, held = parts_.held, job = parts_.options.job] {
        if (held != nullptr) *sets = snapshot::ListHeld(*held, job);
      },
      [this, sets] {
        if (!is_running()) return parts_.on_idle();
        sets_ = std::move(*sets);
        for (const snapshot::HeldSet& set : sets_) {
          v1::HeldReplica* const replica = offer_.add_held();
          replica->set_step(set.step);
          replica->set_checksum(set.checksum);
          replica->set_manifest_bytes(set.manifest_bytes);
          replica->set_num_shards(set.num_shards);
          replica->set_last(set.is_last);
          for (const int shard : set.shards) replica->add_shards(shard);
        }
        if (parts_.held != nullptr) {
          offer_.set_node(parts_.held->node().value());
          offer_.set_num_nodes(parts_.held->num_nodes());
        }
        is_offering_ = true;
        Offer();
      });
}

void JobResume::Offer() {
  if (!is_running() || !is_offering_) return;
  if (is_coordinator()) {
    council_->OnOffer(parts_.node, offer_);
    TellChoice();
    if (council_->choice() != nullptr) TakeChoice(*council_->choice());
    return;
  }
  v1::ResumeFrame frame;
  *frame.mutable_offer() = offer_;
  parts_.send(NodeRank(0), frame);
  OfferLater();
}

// What is new of it, before it is acted on here: if it ends the job, nobody
// answers for it any more.
void JobResume::TellChoice() {
  const v1::ResumeChoice* const choice = council_->choice();
  if (choice == nullptr ||
      (choice->round() == told_.round() && choice->go() == told_.go())) {
    return;
  }
  told_ = *choice;
  v1::ResumeFrame frame;
  *frame.mutable_choice() = *choice;
  for (int n = 0; n < num_nodes(); ++n) {
    if (NodeRank(n) != parts_.node) parts_.send(NodeRank(n), frame);
  }
}

void JobResume::OfferLater() {
  parts_.executor->Cancel(timer_);
  timer_ = parts_.executor->PostAfter(kRepeatEvery, [this] {
    timer_ = 0;
    Offer();
  });
}

void JobResume::OnFrame(NodeRank from, const v1::ResumeFrame& frame) {
  if (from.value() < 0 || from.value() >= num_nodes() || from == parts_.node) {
    return;
  }
  if (!is_coordinator()) {
    if (from == NodeRank(0) && frame.has_choice()) TakeChoice(frame.choice());
    return;
  }
  if (!frame.has_offer() || council_ == nullptr) return;  // it comes again
  council_->OnOffer(from, frame.offer());
  if (council_->choice() == nullptr) return TellBlocked(from);
  TellChoice();
  v1::ResumeFrame answer;
  *answer.mutable_choice() = *council_->choice();
  parts_.send(from, answer);
  TakeChoice(*council_->choice());
}

void JobResume::TellBlocked(NodeRank to) {
  if (council_->blocked().empty()) return;
  v1::ResumeFrame frame;
  frame.mutable_choice()->set_text(council_->blocked());
  parts_.send(to, frame);
}

absl::Status JobResume::Adopt() {
  if (!is_coordinator()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this is node ", parts_.node.value(), " of job ",
        base::Quoted(parts_.options.job), ": say it to the daemon of node 0"));
  }
  if (!is_running() || council_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", base::Quoted(parts_.options.job),
                     " does not wait for a word on nodes that are missing"));
  }
  if (absl::Status status = council_->Adopt(); !status.ok()) return status;
  TellChoice();
  if (council_->choice() != nullptr) TakeChoice(*council_->choice());
  return absl::OkStatus();
}

// ---- What was chosen. ----

void JobResume::TakeChoice(const v1::ResumeChoice& choice) {
  if (!is_running() || !is_offering_ || choice.round() < choice_.round()) {
    return;
  }
  if (choice.code() != 0) {
    const bool is_code =
        choice.code() > 0 &&
        choice.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
    return End(absl::Status(is_code
                                ? static_cast<absl::StatusCode>(choice.code())
                                : absl::StatusCode::kUnknown,
                            choice.text().substr(0, kMaxTextBytes)));
  }
  if (choice.round() == choice_.round()) {
    if (choice.round() == 0) blocked_ = choice.text().substr(0, kMaxTextBytes);
    if (choice.go() && offer_.loaded()) End(std::move(result_));
    return;
  }
  choice_ = choice;
  offer_.set_round(choice.round());
  offer_.set_loaded(false);
  offer_.set_code(0);
  offer_.clear_text();
  offer_.clear_bad();
  Carry();
}

void JobResume::Carry() {
  replica_load_.Cancel();
  result_ = {};
  const int round = choice_.round();
  if (choice_.from() == v1::ResumeChoice::REPLICA) return CarryReplica();
  if (choice_.from() == v1::ResumeChoice::NOTHING) {
    offer_.set_loaded(true);
    return Post([this] { Offer(); });
  }
  if (!parts_.stored.has_value() || loading_.is_busy()) {
    return OnLoaded(
        round,
        absl::FailedPreconditionError("this node has found no stored state"),
        std::nullopt);
  }
  result_.source = absl::StrCat("snapshot ", parts_.stored->path);
  loading_.Start(*parts_.stored, parts_.target,
                 [this, round](absl::StatusOr<snapshot::LoadedState> loaded) {
                   OnLoaded(round, std::move(loaded), std::nullopt);
                   parts_.on_idle();
                 });
}

void JobResume::CarryReplica() {
  const int round = choice_.round();
  absl::StatusOr<snapshot::HeldChoice> held = ToHeld(choice_, num_nodes());
  if (!held.ok()) return OnLoaded(round, held.status(), std::nullopt);
  result_.source = Describe(*held);
  if (choice_.bad_copies() > 0) {
    absl::StrAppend(
        &result_.source, " (", choice_.bad_copies(),
        choice_.bad_copies() == 1 ? " damaged copy" : " damaged copies",
        " passed over)");
  }
  replica_load_.Start(*std::move(held),
                      [this, round](snapshot::ReplicaLoad::Outcome outcome) {
                        OnLoaded(round, std::move(outcome.loaded), outcome.bad);
                        parts_.on_idle();
                      });
}

void JobResume::OnLoaded(int round,
                         absl::StatusOr<snapshot::LoadedState> loaded,
                         std::optional<snapshot::BadCopy> bad) {
  if (!is_running() || round != choice_.round()) return;
  if (loaded.ok()) {
    result_.loaded = *std::move(loaded);
    offer_.set_loaded(true);
  } else {
    const absl::Status& why = loaded.status();
    if (bad.has_value() && parts_.warn) {
      parts_.warn(absl::StrCat("job=", parts_.options.job, " ",
                               std::string(why.message())));
    }
    offer_.set_code(static_cast<int>(why.code()));
    offer_.set_text(std::string(why.message()).substr(0, kMaxTextBytes));
    if (bad.has_value()) {
      offer_.mutable_bad()->set_checksum(bad->checksum);
      offer_.mutable_bad()->set_shard(bad->shard);
      offer_.mutable_bad()->set_node(bad->node.value());
    }
  }
  Post([this] { Offer(); });
}

void JobResume::End(absl::StatusOr<Result> result) {
  courier_.SetPulls(nullptr);
  replica_load_.Cancel();
  loading_.Cancel();
  parts_.executor->Cancel(std::exchange(timer_, 0));
  Post([done = std::exchange(done_, nullptr),
        result = std::move(result)]() mutable {
    std::move(done)(std::move(result));
  });
}

void JobResume::Cancel() {
  courier_.SetPulls(nullptr);
  replica_load_.Cancel();
  loading_.Cancel();
  parts_.executor->Cancel(std::exchange(timer_, 0));
  done_ = nullptr;
}

}  // namespace ballast::daemon
