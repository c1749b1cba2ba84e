// What the ranks of this node have handed over for the open step: pushed
// buckets, hyperparameters, cursors; each counts once (I19). A rank whose
// worker is lost keeps what it gave: its replacement adds what is missing.
//
// Threading: thread-compatible. No allocation per push.
#ifndef SERVER_ENGINE_CONTRIBUTIONS_H_
#define SERVER_ENGINE_CONTRIBUTIONS_H_

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/control_block.h"
#include "server/base/ids.h"
#include "server/engine/group_values.h"

namespace ballast::engine {

using RankNamer = std::function<std::string(LocalRank)>;

class Contributions {
 public:
  Contributions(int num_ranks, int num_buckets, Rank first_rank);

  void Clear();  // for the next step

  // False, and nothing changed: unknown rank or bucket, or repeated.
  bool AddPush(LocalRank rank, BucketId bucket);
  bool AddInput(LocalRank rank, std::span<const proto::GroupValues> groups,
                std::string cursor);
  bool AddRefusal(LocalRank rank, const absl::Status& why);

  bool IsCollected(BucketId bucket) const {
    return ranks_per_bucket_[bucket.value()] == num_ranks();
  }
  bool has_all_inputs() const { return inputs_ == num_ranks(); }
  bool is_complete() const {
    return has_all_inputs() && pushes_ == num_ranks() * num_buckets();
  }
  bool is_empty() const { return inputs_ == 0 && pushes_ == 0; }

  // All ranks gave the same values, bit for bit, and none was refused.
  absl::Status Agreement() const;
  // Of all ranks, if they agree.
  const GroupList& groups() const { return ranks_[0].groups; }
  const std::string& cursor(LocalRank rank) const {
    return ranks_[rank.value()].cursor;
  }
  std::vector<std::string> TakeCursors();

  // "rank 2 has not pushed 3 of 12 buckets, rank 3 has not called step".
  // `name_of` says how a rank is called; empty: "rank 2".
  std::string Missing(const RankNamer& name_of = nullptr) const;

 private:
  struct RankState {
    std::vector<bool> pushed;  // by bucket
    int buckets_pushed = 0;
    bool has_input = false;
    absl::Status refusal;
    GroupList groups;
    std::string cursor;
  };

  int num_ranks() const { return static_cast<int>(ranks_.size()); }
  int num_buckets() const { return static_cast<int>(ranks_per_bucket_.size()); }
  RankState* WithoutInput(LocalRank rank);

  const Rank first_rank_;
  std::vector<RankState> ranks_;
  std::vector<int> ranks_per_bucket_;
  int inputs_ = 0;
  int pushes_ = 0;
};

}  // namespace ballast::engine

#endif  // SERVER_ENGINE_CONTRIBUTIONS_H_
