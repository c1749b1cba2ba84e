#include "server/membership/rejoin.h"

#include <cstddef>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "proto/control_block.h"

namespace ballast::membership {
namespace {

// Outcomes follow one another: each opens a step of a generation.
struct Place {
  int64_t open_step = 0;
  int64_t generation = 0;
  bool operator==(const Place&) const = default;
  bool operator<(const Place& other) const {
    return std::tie(open_step, generation) <
           std::tie(other.open_step, other.generation);
  }
};

std::string Describe(size_t node, const v1::Join& join) {
  const v1::Outcome& outcome = join.progress().outcome();
  std::string recorded = "no outcome";
  if (outcome.has_commit()) {
    recorded = absl::StrCat("a commit of step ", outcome.commit().step());
  } else if (outcome.has_abort()) {
    recorded = absl::StrCat("an abort of step ", outcome.abort().step());
  }
  return absl::StrCat("node ", node, " holds ", recorded, " in generation ",
                      join.generation(), ", the state of step ",
                      join.weight_version(), " and weights of step ",
                      join.progress().finished_step());
}

absl::Status Contradiction(std::span<const v1::Join* const> joins, size_t one,
                           size_t other) {
  std::string text = "what the nodes kept of the job contradicts itself: ";
  absl::StrAppend(&text, Describe(one, *joins[one]));
  if (other != one)
    absl::StrAppend(&text, "; ", Describe(other, *joins[other]));
  return absl::DataLossError(text);
}

Place PlaceOf(const v1::Join& join) {
  const v1::Outcome& outcome = join.progress().outcome();
  if (outcome.has_commit()) {
    return {outcome.commit().step() + 1, outcome.generation()};
  }
  if (outcome.has_abort()) {
    return {outcome.abort().step(), outcome.abort().next_generation()};
  }
  return {join.weight_version() + 1, join.generation()};
}

// Whether a node may be where it says when the last outcome opened `place`.
bool Fits(const v1::Join& join, const Place& place, bool is_commit) {
  const int64_t state = join.weight_version();
  const int64_t finished = join.progress().finished_step();
  const int64_t last = place.open_step - 1;
  if (!is_commit) return state == last && finished == last;
  return (state == last || state == last - 1) && finished <= state &&
         finished >= last - 1;
}

bool IsSane(const v1::Join& join) {
  const Place place = PlaceOf(join);
  return join.has_state() && place.open_step >= 1 &&
         place.open_step <= proto::kMaxStep && place.generation >= 1 &&
         place.generation <= proto::kMaxGeneration &&
         join.generation() == place.generation && join.weight_version() >= 0 &&
         join.optimizer_step() >= 0;
}

}  // namespace

absl::StatusOr<Rejoined> DecideRejoin(std::span<const v1::Join* const> joins) {
  size_t first = 0;  // of those that have the last outcome
  for (size_t n = 0; n < joins.size(); ++n) {
    if (!IsSane(*joins[n])) return Contradiction(joins, n, n);
    if (PlaceOf(*joins[first]) < PlaceOf(*joins[n])) first = n;
  }
  const v1::Join& last = *joins[first];
  const v1::Outcome& outcome = last.progress().outcome();
  const Place place = PlaceOf(last);
  Rejoined result;
  result.generation = Generation(place.generation);
  result.open_step = Step(place.open_step);
  result.optimizer_step = last.optimizer_step();
  result.rank0_cursor = joins[0]->progress().rank0_cursor();
  bool is_published = true;
  for (size_t n = 0; n < joins.size(); ++n) {
    const v1::Join& join = *joins[n];
    const bool is_same = PlaceOf(join) != place ||
                         join.progress().outcome().SerializeAsString() ==
                             outcome.SerializeAsString();
    if (!is_same || !Fits(join, place, outcome.has_commit())) {
      return Contradiction(joins, n, first);
    }
    is_published =
        is_published && join.progress().finished_step() == place.open_step - 1;
  }
  if (outcome.has_commit()) {
    result.optimizer_step = outcome.commit().optimizer_step();
    if (!is_published) result.commit = outcome.commit();
  } else if (outcome.has_abort()) {
    result.abort = outcome.abort();
  }
  return result;
}

}  // namespace ballast::membership
