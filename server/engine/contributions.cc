#include "server/engine/contributions.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ballast::engine {

Contributions::Contributions(int num_ranks, int num_buckets, Rank first_rank)
    : first_rank_(first_rank),
      ranks_(num_ranks),
      ranks_per_bucket_(num_buckets) {
  Clear();
}

void Contributions::Clear() {
  for (RankState& rank : ranks_) {
    rank.pushed.assign(num_buckets(), false);
    rank.buckets_pushed = 0;
    rank.has_input = false;
    rank.refusal = absl::OkStatus();
    rank.cursor.clear();
  }
  ranks_per_bucket_.assign(num_buckets(), 0);
  inputs_ = 0;
  pushes_ = 0;
}

bool Contributions::AddPush(LocalRank rank, BucketId bucket) {
  const int l = rank.value();
  const int b = bucket.value();
  if (l < 0 || l >= num_ranks() || b < 0 || b >= num_buckets() ||
      ranks_[l].pushed[b]) {
    return false;
  }
  ranks_[l].pushed[b] = true;
  ++ranks_[l].buckets_pushed;
  ++ranks_per_bucket_[b];
  ++pushes_;
  return true;
}

Contributions::RankState* Contributions::WithoutInput(LocalRank rank) {
  if (rank.value() < 0 || rank.value() >= num_ranks()) return nullptr;
  RankState& state = ranks_[rank.value()];
  return state.has_input ? nullptr : &state;
}

bool Contributions::AddInput(LocalRank rank,
                             std::span<const proto::GroupValues> groups,
                             std::string cursor) {
  RankState* state = WithoutInput(rank);
  if (state == nullptr) return false;
  state->has_input = true;
  state->groups.assign(groups.begin(), groups.end());
  state->cursor = std::move(cursor);
  ++inputs_;
  return true;
}

bool Contributions::AddRefusal(LocalRank rank, const absl::Status& why) {
  RankState* state = WithoutInput(rank);
  if (state == nullptr || why.ok()) return false;
  state->has_input = true;
  state->refusal = why;
  ++inputs_;
  return true;
}

absl::Status Contributions::Agreement() const {
  for (const RankState& rank : ranks_) {
    if (!rank.refusal.ok()) return rank.refusal;
  }
  for (int l = 1; l < num_ranks(); ++l) {
    const absl::Status same =
        CheckAgree(ranks_[0].groups, first_rank_, ranks_[l].groups,
                   Rank(first_rank_.value() + l));
    if (!same.ok()) return same;
  }
  return absl::OkStatus();
}

std::vector<std::string> Contributions::TakeCursors() {
  std::vector<std::string> cursors;
  for (RankState& rank : ranks_) cursors.push_back(std::move(rank.cursor));
  return cursors;
}

std::string Contributions::Missing(const RankNamer& name_of) const {
  std::vector<std::string> missing;
  for (int l = 0; l < num_ranks(); ++l) {
    const RankState& rank = ranks_[l];
    const std::string name =
        name_of ? name_of(LocalRank(l))
                : absl::StrCat("rank ", first_rank_.value() + l);
    if (rank.buckets_pushed < num_buckets()) {
      missing.push_back(absl::StrCat(name, " has not pushed ",
                                     num_buckets() - rank.buckets_pushed,
                                     " of ", num_buckets(), " buckets"));
    } else if (!rank.has_input) {
      missing.push_back(absl::StrCat(name, " has not called step"));
    }
  }
  return absl::StrJoin(missing, ", ");
}

}  // namespace ballast::engine
