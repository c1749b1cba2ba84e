#include "tests/sim/fault.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status_macros.h"

namespace ballast::sim {
namespace {

// In the order of Fault::Kind.
constexpr std::string_view kNames[] = {
    "nan",         "infinity",     "lr",         "crash",      "kill",
    "slow",        "cut",          "corrupt",    "restart",    "stop",
    "kill_keeper", "lose_request", "lose_reply", "disk_fails", "disk_full",
    "power_fails", "torn"};
static_assert(std::size(kNames) == Fault::kNumKinds);

bool MayBeOfNode(Fault::Kind kind) {
  switch (kind) {
    case Fault::Kind::kNan:
    case Fault::Kind::kInfinity:
    case Fault::Kind::kValue:
    case Fault::Kind::kCrash:
    case Fault::Kind::kSlow:
      return false;
    default:
      return true;
  }
}

bool Loses(Fault::Kind kind) {
  return kind == Fault::Kind::kLoseRequest || kind == Fault::Kind::kLoseReply;
}

bool MayBeOfRank(Fault::Kind kind) {
  return !MayBeOfNode(kind) || kind == Fault::Kind::kStop || Loses(kind);
}

// Calls of workers, which have an answer each; polls of a node that meets the
// others at node 0; frames between nodes (proto/peer.proto) by the name of
// their body, of which those that node 0 answers with, or tells by itself, are
// replies.
constexpr std::string_view kCalls[] = {"attach", "begin", "close"};
constexpr std::string_view kRequests[] = {"poll",  "join",  "ready", "vote",
                                          "leave", "note",  "pull",  "offer",
                                          "wish",  "armed", "shard", "held"};
constexpr std::string_view kReplies[] = {
    "poll", "view",   "start", "refusal", "commit", "abort",
    "heal", "choice", "order", "collect", "outcome"};

std::string List(std::span<const std::string_view> names) {
  return absl::StrJoin(names, ", ",
                       [](std::string* out, auto name) { out->append(name); });
}

absl::StatusOr<Fault::Kind> ParseKind(const std::string& word) {
  const auto* const end = kNames + static_cast<size_t>(Fault::kFirstOfNoStep);
  const auto* const name = std::find(kNames, end, word);
  if (name != end) return static_cast<Fault::Kind>(name - kNames);
  return absl::InvalidArgumentError(
      absl::StrCat("no fault of a step is called \"", word, "\": there are ",
                   List({kNames, end})));
}

// What is lost must be what such a process says.
absl::Status CheckLost(const Fault& fault) {
  std::span<const std::string_view> known = kCalls;
  if (fault.is_node) {
    known = kReplies;
    if (fault.kind == Fault::Kind::kLoseRequest) known = kRequests;
  }
  if (std::ranges::find(known, fault.what) == known.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        fault.is_node ? "nodes" : "ranks", " know no ",
        fault.kind == Fault::Kind::kLoseRequest ? "request" : "reply", " \"",
        fault.what, "\": there are ", List(known)));
  }
  if (fault.is_node && fault.where == 0) {
    return absl::InvalidArgumentError(
        "what node 0 says to itself is not lost: name another node");
  }
  return absl::OkStatus();
}

// [chunk C | owner | member] [early] [unseen] [maybe]
absl::Status ParseCorruption(Line* line, Fault* fault) {
  if (line->Is("chunk")) {
    ASSIGN_OR_RETURN(fault->chunk, Integer<size_t>(line->Take()));
  } else if (line->Is("owner")) {
    fault->is_own = true;
  } else if (line->Is("member")) {
    fault->is_own = false;
  }
  fault->is_early = line->Is("early");
  fault->is_unseen = line->Is("unseen");
  fault->may_miss = line->Is("maybe");
  if (fault->is_unseen && !fault->is_early) {
    return absl::InvalidArgumentError("only what is early can be unseen");
  }
  return absl::OkStatus();
}

absl::Status ParseWhere(Line* line, int nodes, int workers, Fault* fault) {
  fault->is_node = MayBeOfNode(fault->kind) && line->Is("node");
  if (!fault->is_node && !(MayBeOfRank(fault->kind) && line->Is("rank"))) {
    const std::string name(Name(fault->kind));
    return absl::InvalidArgumentError(absl::StrCat(
        name, " befalls a ", MayBeOfNode(fault->kind) ? "node" : "rank",
        ": say ", name, MayBeOfNode(fault->kind) ? " node N" : " rank R"));
  }
  ASSIGN_OR_RETURN(fault->where, Integer<int>(line->Take()));
  const int bound = fault->is_node ? nodes : nodes * workers;
  if (fault->where < 0 || fault->where >= bound) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no ", fault->is_node ? "node " : "rank ",
                     fault->where, ": there are ", bound, ", from 0"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(Fault::Kind kind) {
  return kNames[static_cast<size_t>(kind)];
}

// step S KIND [WHAT] (rank R | node N) [value] [after DURATION] [back DURATION]
absl::StatusOr<Fault> ParseFault(Line* line, int nodes, int workers) {
  Fault fault;
  if (!line->Is("step")) return absl::InvalidArgumentError("at step S …");
  ASSIGN_OR_RETURN(fault.step, Integer<int64_t>(line->Take()));
  ASSIGN_OR_RETURN(fault.kind, ParseKind(line->Take()));
  if (Loses(fault.kind)) fault.what = line->Take();
  RETURN_IF_ERROR(ParseWhere(line, nodes, workers, &fault));
  if (fault.kind == Fault::Kind::kValue) {
    ASSIGN_OR_RETURN(fault.value, Real(line->Take()));
  }
  if (fault.kind == Fault::Kind::kCorrupt) {
    RETURN_IF_ERROR(ParseCorruption(line, &fault));
  }
  if (Loses(fault.kind)) {
    RETURN_IF_ERROR(CheckLost(fault));
    fault.may_miss = line->Is("maybe");
    return fault;
  }
  const bool is_at_any_moment = fault.kind == Fault::Kind::kStop ||
                                fault.kind == Fault::Kind::kKeeperDies;
  if (is_at_any_moment && line->Is("after")) {
    ASSIGN_OR_RETURN(fault.after, Time(line->Take()));
  }
  if (line->Is("back")) {
    ASSIGN_OR_RETURN(fault.back_after, Time(line->Take()));
  }
  if (fault.kind == Fault::Kind::kStop && !fault.back_after.has_value()) {
    return absl::InvalidArgumentError(
        "what is stopped must go on, or its ranks never end: say back D");
  }
  return fault;
}

}  // namespace ballast::sim
