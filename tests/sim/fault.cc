#include "tests/sim/fault.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status_macros.h"

namespace ballast::sim {
namespace {

// In the order of Fault::Kind.
constexpr std::string_view kNames[] = {
    "nan",        "infinity",  "lr",          "crash",   "kill",
    "slow",       "cut",       "corrupt",     "restart", "stop",
    "disk_fails", "disk_full", "power_fails", "torn"};
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

bool MayBeOfRank(Fault::Kind kind) {
  return !MayBeOfNode(kind) || kind == Fault::Kind::kStop;
}

absl::StatusOr<Fault::Kind> ParseKind(const std::string& word) {
  const auto* const end = kNames + static_cast<size_t>(Fault::kFirstOfNoStep);
  const auto* const name = std::find(kNames, end, word);
  if (name != end) return static_cast<Fault::Kind>(name - kNames);
  return absl::InvalidArgumentError(absl::StrCat(
      "no fault of a step is called \"", word, "\": there are ",
      absl::StrJoin(kNames, end, ", ",
                    [](std::string* out, auto name) { out->append(name); })));
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

// step S WHAT (rank R | node N) [value] [after DURATION] [back DURATION]
absl::StatusOr<Fault> ParseFault(Line* line, int nodes, int workers) {
  Fault fault;
  if (!line->Is("step")) return absl::InvalidArgumentError("at step S …");
  ASSIGN_OR_RETURN(fault.step, Integer<int64_t>(line->Take()));
  ASSIGN_OR_RETURN(fault.kind, ParseKind(line->Take()));
  RETURN_IF_ERROR(ParseWhere(line, nodes, workers, &fault));
  if (fault.kind == Fault::Kind::kValue) {
    ASSIGN_OR_RETURN(fault.value, Real(line->Take()));
  }
  if (fault.kind == Fault::Kind::kCorrupt) {
    RETURN_IF_ERROR(ParseCorruption(line, &fault));
  }
  if (fault.kind == Fault::Kind::kStop && line->Is("after")) {
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
