#include "tests/sim/random_schedule.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/random.h"

namespace ballast::sim {
namespace {

constexpr std::pair<std::string_view, Profile> kProfiles[] = {
    {"fast", Profile::kFast},   {"slow", Profile::kSlow},
    {"death", Profile::kDeath}, {"disk", Profile::kDisk},
    {"loss", Profile::kLoss},
};

class Drawing {
 public:
  Drawing(Profile profile, uint64_t seed)
      : profile_(profile),
        is_slow_(profile == Profile::kSlow),
        random_(seed * 4 + static_cast<uint64_t>(profile)) {}

  std::string Draw() {
    DrawShape();
    DrawExchange();
    DrawModel();
    DrawPipeline();
    DrawNetwork();
    if (profile_ == Profile::kLoss ||
        (profile_ != Profile::kDisk && OneIn(4))) {
      Say("replica_every ", Between(1, 2));
    }
    // A rank that comes back after the end waits join_timeout, 1m, for others
    // that have ended: so long the replicas of theirs must be held, or too few
    // of the first life's nodes hold any when the next one begins.
    if (profile_ == Profile::kLoss) Say("hold 3m");
    const std::string peaceful = text_;
    DrawFaults();
    const std::string faults = text_.substr(peaceful.size());
    const std::string shape = Shape(nodes_, workers_, steps_);
    if (profile_ == Profile::kDisk) DrawDisk(faults);
    if (profile_ == Profile::kLoss) DrawLoss();
    return absl::StrCat(shape, text_);
  }

 private:
  int Below(int bound) { return static_cast<int>(random_.Below(bound)); }
  int Between(int least, int most) { return least + Below(most - least + 1); }
  bool OneIn(int n) { return Below(n) == 0; }
  std::string Pick(std::initializer_list<const char*> of) {
    return *(of.begin() + Below(static_cast<int>(of.size())));
  }
  template <typename... Parts>
  void Say(const Parts&... parts) {
    absl::StrAppend(&text_, parts..., "\n");
  }
  static std::string Shape(int nodes, int workers, int steps) {
    return absl::StrCat("nodes ", nodes, "\nworkers ", workers, "\nsteps ",
                        steps, "\n");
  }

  void DrawShape() {
    const int least = LosesNode() ? 2 : 1;
    nodes_ = Between(least, is_slow_ ? 5 : 3);
    workers_ = Between(1, is_slow_ ? 4 : 2);
    steps_ = is_slow_ ? Between(8, 16) : Between(4, 7);
    // Two partition groups of what would be all nodes.
    has_partitions_ = nodes_ <= 3 && OneIn(4);
    owners_ = nodes_;
    if (has_partitions_) nodes_ *= 2;
  }

  void DrawExchange() {
    exchange_ = Pick({"exact", "exact", "zeropp", "delta4", "delta2",
                      "weights.mode=delta weights.codec=int8",
                      "weights.codec=int8 gradients.codec=int8"});
    is_exact_ = exchange_ == "exact";
    is_delta_ = absl::StrContains(exchange_, "delta");
    // What is on its way when links are lost may be the last good copy.
    relinks_ = profile_ != Profile::kDeath && (!is_delta_ || OneIn(2));
    std::string more;
    if (has_partitions_) absl::StrAppend(&more, " partition_nodes=", owners_);
    if (!is_delta_ && OneIn(4)) {
      gathers_ = true;
      absl::StrAppend(&more, " secondary_partition=none");
    }
    if (!is_exact_) {
      if (OneIn(3)) {
        absl::StrAppend(&more,
                        " gradients.rounding=stochastic seed=", Below(1000));
      }
      const bool has_gradient_codec =
          !absl::StartsWith(exchange_, "weights.mode");
      if (has_gradient_codec && !has_partitions_ && OneIn(3)) {
        absl::StrAppend(&more, " gradients.error_feedback=true");
      }
      // The first decision after a load does not know all errors.
      if (!gathers_ && !GoesOn() && OneIn(4)) {
        absl::StrAppend(&more,
                        " max_relative_error=", Pick({"0.001", "0.05", "0.3"}),
                        " metering.one_in=", Between(1, 4));
      }
      // Presets leave small tensors unquantized, and here all are small.
      if (OneIn(2)) absl::StrAppend(&more, " override:a=int8");
      if (is_delta_ || OneIn(2)) absl::StrAppend(&more, " override:b=int4");
    }
    Say("exchange ", exchange_, more);
  }

  void DrawModel() {
    const auto dtype = [this] {
      return Pick({"float32", "float32", "bfloat16", "float16"});
    };
    const bool has_groups = OneIn(2);
    const char* const second = has_groups ? " group 1" : "";
    Say("tensor a ", dtype(), " ", Between(1, 4), "x", Between(1, 7001));
    // With deltas every node has a chunk of it, to be damaged.
    Say("tensor b ", dtype(), " ",
        Between(is_delta_ ? 20'001 : 1, is_slow_ || is_delta_ ? 30'001 : 9001),
        second);
    if (OneIn(2))
      Say("tensor base ", dtype(), " ", Between(1, 5000), " frozen");
    if (OneIn(2)) Say("tensor s ", dtype(), " scalar");
    if (OneIn(3)) Say("tensor none float32 0");
    // Their mean is checked too, where quantizing spares them.
    if (is_exact_) Say("tensor ones float32 ", Between(1, 3000));
    Say("optimizer ", Pick({"sgd lr 0.05", "sgd lr 0.05 momentum 0.9 nesterov",
                            "adam lr 0.01", "adamw lr 0.01 weight_decay 0.1",
                            "lion lr 0.001", "adagrad lr 0.01"}));
    if (has_groups) Say("group lr 0.002");
    if (OneIn(2)) Say("clip ", Pick({"0.01", "1"}));
  }

  void DrawPipeline() {
    const int bucket = 16'384 << Below(3);
    Say("bucket_bytes ", bucket);
    Say("chunk_bytes ", std::min(bucket, 8192 << Below(3)));
    Say("in_flight ", Between(1, 4));
    if (gathers_) Say("units_at_once ", Between(2, 4));
    if (OneIn(2)) Say("push_order ", Pick({"reverse", "random"}));
    overlaps_ = OneIn(2);
    if (overlaps_) Say("overlap");
    // Of damage only what a step writes anew is known.
    if (!gathers_ && !MayCorrupt() && OneIn(3)) {
      load_step_ = Between(1, steps_);
      Say("load ", load_step_, OneIn(2) ? " anew" : "");
    }
    if (OneIn(2)) Say("gather ", Pick({"direct", "ring", "doubling", "bruck"}));
    if (!OneIn(2)) return;
    const bool may_halve = is_exact_ && (nodes_ & (nodes_ - 1)) == 0;
    Say("reduce ", may_halve && OneIn(2)
                       ? std::string("halving")
                       : Pick({"direct", "pairwise", "bruck"}));
  }

  void DrawNetwork() {
    if (OneIn(3)) return;
    Say("link delay 5us ", Between(1, 9), "ms loss 0.", Below(3),
        " duplicate 0.", Below(3), " reorder 0.", Below(3));
  }

  // So many, in ascending steps.
  void DrawFaults() {
    if (OneIn(3))
      DrawLostWord(0, {"attach", "begin"}, {"join", "ready"},
                   {"view", "start"});
    for (int step = 1; step <= steps_; ++step) {
      if (MayLoseKeeper(step) && OneIn(8)) {
        DrawKeeperDeath(step);
        continue;
      }
      // One that comes late comes in the next step.
      const bool is_free = step > last_corruption_ + (nodes_ == 2 ? 1 : 0);
      if (MayCorrupt() && step > 1 && is_free && OneIn(4)) {
        last_corruption_ = step;
        DrawCorruption(step);
        continue;
      }
      for (int n = Below(is_slow_ ? 3 : 2); n > 0; --n) DrawFault(step);
    }
    if (profile_ == Profile::kDeath) {
      DrawDeath(Between(2, steps_));
      // A rank that comes back after the end waits for a new job's others.
      Say("expect node or did not start or its keeper died");
    }
  }

  void DrawFault(int step) {
    const int rank = Below(nodes_ * workers_);
    const std::string at = absl::StrCat("at step ", step, " ");
    switch (Below(9)) {
      case 0:
        // Rank 0's would be weights.
        if (step == load_step_) return;
        return Say(at, Pick({"nan", "infinity"}), " rank ", rank);
      case 1:
        return Say(at, "slow rank ", rank, " back ", Between(1, 3000), "ms");
      case 2:
        // Two that agree would be believed.
        if (nodes_ * workers_ > 1 && step != last_lr_) {
          last_lr_ = step;
          Say(at, "lr rank ", rank, " 0.5");
        }
        return;
      case 3:
        // A node that is silent for 30 s is missed.
        if (nodes_ > 1 && !LosesNode()) {
          has_node_faults_ = true;
          last_node_fault_ = step;
          const bool is_long = relinks_ && step > 1 && OneIn(3);
          Say(at, "cut node ", Below(nodes_), " back ",
              is_long ? Between(25'000, 90'000) : Between(1, 8000), "ms");
        }
        return;
      case 4:
        // Of several nodes no job is kept that has not begun.
        if (nodes_ == 1 || (relinks_ && step > 1)) {
          if (GoesOn()) return;
          const int node = Below(nodes_);
          restarted_.insert(node);
          last_node_fault_ = step;
          Say(at, "restart node ", node, " back ", Between(1, 500), "ms");
        }
        return;
      case 5:
        return DrawStop(at, step);
      case 6:
        return DrawLostWord(step, {"attach", "begin", "close"},
                            {"vote", "vote", "note", "pull", "poll", "join",
                             "armed", "shard", "held"},
                            {"commit", "commit", "abort", "heal", "poll",
                             "view", "order", "collect", "outcome"});
      default:
        return Say(at, "crash rank ", rank, " back ", Between(1, 20'000), "ms");
    }
  }

  using Words = std::initializer_list<const char*>;
  // Of a worker to its daemon, or of daemons. There may be no occasion.
  void DrawLostWord(int step, Words calls, Words requests, Words replies) {
    const bool is_reply = OneIn(2);
    const std::string lose = absl::StrCat(
        "at step ", step, is_reply ? " lose_reply " : " lose_request ");
    if (nodes_ == 1 || OneIn(2)) {
      return Say(lose, Pick(calls), " rank ", Below(nodes_ * workers_),
                 " maybe");
    }
    has_node_faults_ = true;
    Say(lose, Pick(is_reply ? replies : requests), " node ",
        Between(1, nodes_ - 1), " maybe");
  }

  // Only where daemons are replaced is it of any use, and only later: a node
  // that loses both is lost. Where pushes overlap, the slow rank that makes the
  // step long enough may have waited before any rank has all of its weights:
  // the step begins late then, and is short.
  bool MayLoseKeeper(int step) const {
    return !overlaps_ && step < steps_ && step > last_node_fault_ + 1 &&
           !GoesOn() && (nodes_ == 1 || (relinks_ && step > 1));
  }
  // Alone in its step, which lasts until another keeper is there: nothing of
  // the step before makes its workers begin it anew.
  void DrawKeeperDeath(int step) {
    const int node = Below(nodes_);
    if (!restarted_.insert(node).second) return;
    const int back = Between(1, 200);
    Say("at step ", step, " kill_keeper node ", node, " after ", Below(4000),
        "us back ", back, "ms");
    Say("at step ", step, " slow rank ", Below(nodes_ * workers_), " back ",
        back + 100, "ms");
    Say("at step ", step + 1, " restart node ", node, " back ", Between(1, 500),
        "ms");
    last_node_fault_ = step + 1;
  }

  // A node that does not come back, or comes when the others have given it up.
  void DrawDeath(int step) {
    const int node = Below(nodes_);
    const std::string at = absl::StrCat("at step ", step, " ");
    switch (Below(4)) {
      case 0:
        return Say(at, "kill node ", node);
      case 1:
        return Say(at, "cut node ", node);
      case 2:
        return Say(at, "stop node ", node, " back 4m");
      default:
        // Its keeper too.
        Say(at, "kill_keeper node ", node, " back 1m");
        Say(at, "slow rank ", node * workers_, " back 100ms");
        Say(at, "restart node ", node, " back 500ms");
    }
  }

  // A rank for as long as may be, a node too long for the others or not.
  void DrawStop(const std::string& at, int step) {
    const std::string after = absl::StrCat(" after ", Below(4000), "us back ");
    if (OneIn(2)) {
      return Say(at, "stop rank ", Below(nodes_ * workers_), after,
                 Between(1, 20'000), "ms");
    }
    has_node_faults_ = true;
    last_node_fault_ = step;
    const bool is_long =
        nodes_ > 1 && relinks_ && !LosesNode() && step > 1 && OneIn(3);
    Say(at, "stop node ", Below(nodes_), after,
        is_long ? Between(25'000, 90'000) : Between(1, 8000), "ms");
  }

  // Snapshots keep what they find, and what ends early heals nothing.
  bool MayCorrupt() const {
    return is_delta_ && owners_ > 1 && !relinks_ && !LosesNode() && !GoesOn();
  }

  bool LosesNode() const {
    return profile_ == Profile::kDeath || profile_ == Profile::kLoss;
  }
  // From what an earlier life left.
  bool GoesOn() const {
    return profile_ == Profile::kDisk || profile_ == Profile::kLoss;
  }

  // Alone in its step: nobody shall read the weights again before they heal.
  // One at a time: with two nodes two of them can leave no good copy.
  void DrawCorruption(int step) {
    Say("at step ", step, " corrupt node ", Below(nodes_), " ",
        Pick({"", "owner", "member", "member early unseen"}), " maybe");
  }

  void DrawDisk(const std::string& faults) {
    const int power_fails_after = Between(1, 60);
    std::string disk;
    if (OneIn(3)) {
      absl::StrAppend(&disk, " fails_after ", Below(40));
      absl::StrAppend(&disk, " times ", OneIn(2) ? 1 : Between(2, 20));
    }
    if (OneIn(6)) absl::StrAppend(&disk, " capacity ", Below(400'000));
    // On other nodes, where that changes no bit: coded sums are those of the
    // nodes that made them.
    int nodes = nodes_;
    if (is_exact_ && !has_node_faults_) {
      const int ranks = nodes_ * workers_;
      do {
        nodes = Between(1, ranks);
      } while (ranks % nodes != 0 || (has_partitions_ && nodes % owners_ != 0));
    }
    Say("snapshot_every ", Between(1, 3));
    Say("disk", disk);
    Say("power_fails_after ", power_fails_after, OneIn(3) ? " torn" : "");
    Say("then");
    text_ += Shape(nodes, nodes_ * workers_ / nodes, steps_ + 3) + faults;
  }

  void DrawLoss() {
    const int lost = Below(nodes_);
    // Late, and longer than a node stops, so that all is held: what only some
    // have of a step is not gone on from.
    Say("at step ", steps_ - 1, " slow rank 0 back 11s");
    Say("at step ", steps_, " kill node ", lost);
    Say("expect node or did not start");
    std::vector<std::string> from;
    for (int n = 0; n < nodes_; ++n) {
      if (n != lost) from.push_back(absl::StrCat(n));
    }
    // All that are left, for they may hold what no other does, and new ones.
    int more = Below(3);
    while ((nodes_ - 1 + more) % OwnersOfNext() != 0) ++more;
    // Quantized, one node alone shows other weights than it was left.
    if (!is_exact_ && nodes_ - 1 + more == 1) more += OwnersOfNext();
    for (; more > 0; --more) {
      from.insert(from.begin() + Below(static_cast<int>(from.size()) + 1),
                  "new");
    }
    Say("then from ", absl::StrJoin(from, " "));
    text_ += Shape(static_cast<int>(from.size()), Between(1, 2), steps_ + 3);
    // Half of the nodes, and not the one that may go on.
    if (nodes_ == 2 && lost == 0) Say("adopt 5s");
  }
  int OwnersOfNext() const { return has_partitions_ ? owners_ : 1; }

  const Profile profile_;
  const bool is_slow_;
  base::SeededRandom random_;
  std::string text_;
  int nodes_ = 1;
  int owners_ = 1;  // nodes of a partition group
  bool has_partitions_ = false;
  int workers_ = 1;
  int steps_ = 1;
  std::string exchange_;
  bool is_exact_ = true;
  bool is_delta_ = false;
  bool gathers_ = false;
  bool relinks_ = false;  // if its nodes lose one another
  bool overlaps_ = false;
  bool has_node_faults_ = false;
  std::set<int> restarted_;  // nodes; their keepers must live
  int last_node_fault_ = 0;  // step
  int last_lr_ = 0;
  int last_corruption_ = 0;
  int load_step_ = 0;  // 0: none
};

}  // namespace

std::optional<Profile> ProfileOf(std::string_view name) {
  for (const auto& [known, profile] : kProfiles) {
    if (known == name) return profile;
  }
  return std::nullopt;
}

std::string_view Name(Profile profile) {
  return kProfiles[static_cast<size_t>(profile)].first;
}

std::string DrawSchedule(Profile profile, uint64_t seed) {
  return Drawing(profile, seed).Draw();
}

}  // namespace ballast::sim
