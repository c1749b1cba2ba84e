#include "server/daemon/resume_council.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/names.h"
#include "server/snapshot/files/manifest.h"

namespace ballast::daemon {
namespace {

constexpr size_t kMaxTextBytes = 500;
constexpr size_t kMaxListedNodes = 8;

std::vector<snapshot::HeldSet> ToSets(const v1::ResumeOffer& offer) {
  std::vector<snapshot::HeldSet> sets;
  for (const v1::HeldReplica& held : offer.held()) {
    if (static_cast<int>(sets.size()) == kMaxOfferedSets) break;
    if (held.shards_size() > snapshot::kMaxNodes) continue;
    sets.push_back({.step = held.step(),
                    .checksum = held.checksum(),
                    .manifest_bytes = held.manifest_bytes(),
                    .num_shards = held.num_shards(),
                    .shards = {held.shards().begin(), held.shards().end()},
                    .is_last = held.last()});
  }
  return sets;
}

// A peer's; never OK.
absl::Status ToFailure(const v1::ResumeOffer& offer) {
  const bool is_code =
      offer.code() > 0 &&
      offer.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return absl::Status(is_code ? static_cast<absl::StatusCode>(offer.code())
                              : absl::StatusCode::kUnknown,
                      offer.text().substr(0, kMaxTextBytes));
}

// "node 0 has shards 0, 2 of step 7, node 1 nothing".
std::string WhoHolds(std::span<const std::vector<snapshot::HeldSet>> by_node) {
  std::vector<std::string> nodes;
  for (size_t n = 0; n < by_node.size() && n < kMaxListedNodes; ++n) {
    const std::vector<snapshot::HeldSet>& sets = by_node[n];
    const auto newest = std::ranges::max_element(
        sets, {}, [](const snapshot::HeldSet& set) { return set.step; });
    nodes.push_back(newest == sets.end()
                        ? absl::StrCat("node ", n, " has nothing")
                        : absl::StrCat("node ", n, " has of step ",
                                       newest->step, " shards ",
                                       absl::StrJoin(newest->shards, ", ")));
  }
  if (by_node.size() > kMaxListedNodes) nodes.push_back("…");
  return absl::StrJoin(nodes, "; ");
}

}  // namespace

ResumeCouncil::ResumeCouncil(Options options)
    : options_(std::move(options)), offers_(options_.num_nodes) {}

void ResumeCouncil::OnOffer(NodeRank from, const v1::ResumeOffer& offer) {
  if (choice_.go() || choice_.code() != 0) return;
  std::optional<v1::ResumeOffer>& last = offers_[from.value()];
  // What it holds is what it said first.
  if (!last.has_value()) last = offer;
  last->set_round(offer.round());
  last->set_loaded(offer.loaded());
  if (choice_.round() == 0) {
    if (std::ranges::all_of(offers_, [](const auto& o) { return !!o; })) {
      Decide();
    }
    return;
  }
  if (offer.round() != choice_.round()) return;
  if (offer.code() != 0) {
    const absl::Status why = ToFailure(offer);
    const snapshot::BadCopy bad{offer.bad().checksum(), offer.bad().shard(),
                                NodeRank(offer.bad().node())};
    if (!offer.has_bad() || std::ranges::find(bad_, bad) != bad_.end()) {
      return Fail(
          absl::Status(why.code(), absl::StrCat("node ", from.value(), ": ",
                                                std::string(why.message()))));
    }
    bad_.push_back(bad);
    return Decide();
  }
  const bool all_loaded = std::ranges::all_of(offers_, [&](const auto& o) {
    return o->round() == choice_.round() && o->loaded();
  });
  if (all_loaded) choice_.set_go(true);
}

void ResumeCouncil::Fail(const absl::Status& why) {
  choice_.set_round(choice_.round() + 1);
  choice_.set_code(static_cast<int>(why.code()));
  choice_.set_text(std::string(why.message()).substr(0, kMaxTextBytes));
}

void ResumeCouncil::ChooseReplica(const snapshot::HeldChoice& held) {
  choice_.set_from(v1::ResumeChoice::REPLICA);
  choice_.set_step(held.step);
  choice_.set_checksum(held.checksum);
  choice_.set_manifest_bytes(held.manifest_bytes);
  for (const std::vector<NodeRank>& nodes : held.holders) {
    v1::Holders* const holders = choice_.add_holders();
    for (const NodeRank node : nodes) holders->add_nodes(node.value());
  }
}

absl::Status ResumeCouncil::Adopt() {
  if (blocked_.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", base::Quoted(options_.job),
                     " does not wait for a word on nodes that are missing"));
  }
  is_adopted_ = true;
  Decide();
  return absl::OkStatus();
}

void ResumeCouncil::BlockIfMinority(const snapshot::EarlierLife& life) {
  blocked_.clear();
  if (is_adopted_ || life.HasMajority()) return;
  blocked_ = absl::StrCat(
      life.nodes.size() == 1 ? "node " : "nodes ",
      absl::StrJoin(life.nodes, ", "), " of the ", life.num_nodes,
      " that ran job ", base::Quoted(options_.job), " at step ", life.step,
      " may not go on alone, the others might too: bring them, or end them for "
      "good and say so with `ballastctl job ",
      options_.job, " --adopt` to node 0");
}

void ResumeCouncil::Decide() {
  std::vector<std::vector<snapshot::HeldSet>> by_node;
  std::vector<snapshot::Membership> memberships;
  for (const auto& offer : offers_) {
    by_node.push_back(ToSets(*offer));
    memberships.push_back({offer->node(), offer->num_nodes()});
  }
  const auto life = snapshot::FindEarlierLife(by_node, memberships);
  if (life.has_value()) BlockIfMinority(*life);
  if (!blocked_.empty()) return;
  const int round = choice_.round() + 1;
  choice_.Clear();
  choice_.set_round(round);
  choice_.set_bad_copies(static_cast<int>(bad_.size()));
  const auto held = snapshot::ChooseHeld(by_node, bad_);
  const std::string job = base::Quoted(options_.job);
  if (held.has_value() && held->step >= options_.stored_step.value_or(-1)) {
    return ChooseReplica(*held);
  }
  if (options_.stored_step.has_value()) {
    choice_.set_from(v1::ResumeChoice::FILES);
    choice_.set_step(*options_.stored_step);
    return;
  }
  choice_.set_round(round - 1);
  // Never anew where there was something: not unless its owner says so.
  if (!bad_.empty()) {
    return Fail(absl::DataLossError(absl::StrCat(
        "no whole replica of job ", job, " is left, ", bad_.size(),
        " copies are damaged; open it with resume=\"never\" to begin anew")));
  }
  if (life.has_value()) {
    return Fail(absl::DataLossError(absl::StrCat(
        "what the ", life->num_nodes, life->num_nodes == 1 ? " node" : " nodes",
        " of job ", job, " held, up to step ", life->step,
        ", is not whole on those that are here: bring the others too, or open "
        "it with resume=\"never\" to begin anew; ",
        WhoHolds(by_node))));
  }
  if (options_.must_resume) {
    return Fail(absl::FailedPreconditionError(absl::StrCat(
        "no job ", job, " is held or stored on any of its ", options_.num_nodes,
        " nodes, and resume=\"must\" starts none")));
  }
  if (!options_.has_initial_values) {
    return Fail(absl::FailedPreconditionError(
        absl::StrCat("no weights of job ", job,
                     " are held or stored on any of its ", options_.num_nodes,
                     " nodes: rank 0 must give the tensors' initial values")));
  }
  choice_.set_round(round);
}

std::string ResumeCouncil::WaitingFor() const {
  if (!blocked_.empty()) return blocked_;
  for (size_t n = 0; n < offers_.size(); ++n) {
    if (!offers_[n].has_value()) {
      return absl::StrCat("node ", n, " has not said what it holds");
    }
    if (choice_.round() > 0 && !choice_.go() &&
        (offers_[n]->round() != choice_.round() || !offers_[n]->loaded())) {
      return absl::StrCat("node ", n, " has not read the state yet");
    }
  }
  return "";
}

}  // namespace ballast::daemon
