// What the links between nodes of one process do: delay, lose, repeat and
// reorder, cut. Seeded; every directed link counts its bytes.
//
// Threading: control thread only.
#ifndef SERVER_TRANSPORT_INPROC_LINK_MODEL_H_
#define SERVER_TRANSPORT_INPROC_LINK_MODEL_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/base/random.h"

namespace ballast::transport {

struct LinkFaults {
  absl::Duration min_delay = absl::Microseconds(5);
  absl::Duration max_delay = absl::Microseconds(50);
  double bytes_per_second = 0;  // 0: no limit
  // What a shared link lets through at once after it was idle, as a token
  // bucket does (tc-tbf).
  uint64_t burst_bytes = 0;
  // Probabilities. Lost frames are gone; lost parts of exchanges are sent
  // again after `resend_delay`, as a reliable transport does.
  double loss = 0;
  double duplicate = 0;
  double reorder = 0;  // frames only: arrives without regard to order
  absl::Duration resend_delay = absl::Milliseconds(1);
};

class LinkModel {
 public:
  // `executor` carries what is under way and outlives every node's own; it
  // must not run after the model is gone.
  LinkModel(base::Executor* executor, uint64_t seed, const LinkFaults& faults);

  void SetFaults(const LinkFaults& faults) { faults_ = faults; }
  const LinkFaults& faults() const { return faults_; }

  // Cuts both directions between two nodes until Heal.
  void Partition(NodeRank a, NodeRank b);
  void Heal(NodeRank a, NodeRank b);
  void HealAll();
  bool IsCut(NodeRank a, NodeRank b) const;
  // Calls `fn` after every Heal.
  void OnHeal(absl::AnyInvocable<void()> fn);

  bool DrawLoss() { return Draw(faults_.loss); }
  bool DrawDuplicate() { return Draw(faults_.duplicate); }
  bool DrawReorder() { return Draw(faults_.reorder); }
  absl::Duration DrawDelay(uint64_t bytes);

  // From now on what goes one way between two nodes shares that link's rate:
  // one after the other, as on a wire. Without it each has the rate alone.
  // `clock` is that of the executor.
  void ShareRate(const base::Clock* clock) { clock_ = clock; }
  // The same for all that goes out of a node: it has one interface, to a
  // switch that is fast enough.
  void ShareInterfaces(const base::Clock* clock) {
    clock_ = clock;
    has_interfaces_ = true;
  }
  absl::Duration DrawDelay(NodeRank from, NodeRank to, uint64_t bytes);

  void CountBytes(NodeRank from, NodeRank to, uint64_t bytes);
  uint64_t link_bytes(NodeRank from, NodeRank to) const;
  uint64_t sent_bytes(NodeRank from) const;

  base::Executor* executor() { return executor_; }

 private:
  using Link = std::pair<NodeRank, NodeRank>;
  static Link Unordered(NodeRank a, NodeRank b);
  bool Draw(double probability);
  absl::Duration DrawLatency();
  absl::Duration TimeOf(uint64_t bytes) const;

  base::Executor* const executor_;
  const base::Clock* clock_ = nullptr;  // null: links are not shared
  bool has_interfaces_ = false;         // but all of a node's together
  base::SeededRandom random_;
  LinkFaults faults_;
  absl::flat_hash_set<Link> cut_;
  absl::flat_hash_map<Link, uint64_t> bytes_;
  absl::flat_hash_map<Link, absl::Time> busy_until_;  // if shared
  std::vector<absl::AnyInvocable<void()>> on_heal_;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_INPROC_LINK_MODEL_H_
