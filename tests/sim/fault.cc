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
    "nan",       "infinity",    "lr",      "crash",   "kill",
    "slow",      "cut",         "corrupt", "restart", "disk_fails",
    "disk_full", "power_fails", "torn"};
static_assert(std::size(kNames) == Fault::kNumKinds);

bool IsOfRank(Fault::Kind kind) {
  switch (kind) {
    case Fault::Kind::kNan:
    case Fault::Kind::kInfinity:
    case Fault::Kind::kValue:
    case Fault::Kind::kCrash:
    case Fault::Kind::kSlow:
      return true;
    default:
      return false;
  }
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
  const bool is_of_rank = IsOfRank(fault->kind);
  const std::string what = is_of_rank ? "rank" : "node";
  if (!line->Is(what)) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(Name(fault->kind)), " befalls a ", what, ": say ",
        std::string(Name(fault->kind)), " ", what, " N"));
  }
  ASSIGN_OR_RETURN(fault->where, Integer<int>(line->Take()));
  const int bound = is_of_rank ? nodes * workers : nodes;
  if (fault->where < 0 || fault->where >= bound) {
    return absl::InvalidArgumentError(absl::StrCat("there is no ", what, " ",
                                                   fault->where, ": there are ",
                                                   bound, ", from 0"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(Fault::Kind kind) {
  return kNames[static_cast<size_t>(kind)];
}

// step S WHAT (rank R | node N) [value] [back DURATION]
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
  if (line->Is("back")) {
    ASSIGN_OR_RETURN(fault.back_after, Time(line->Take()));
  }
  return fault;
}

}  // namespace ballast::sim
