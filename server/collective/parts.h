// What a collective is made of, and what it reports.
#ifndef SERVER_COLLECTIVE_PARTS_H_
#define SERVER_COLLECTIVE_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/exact_sum.h"
#include "kernels/kernels.h"
#include "server/base/clock.h"
#include "server/base/compute_pool.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/device/device.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/layout.h"
#include "server/optimizer/residuals.h"
#include "server/optimizer/update_guard.h"
#include "server/transport/pulls.h"
#include "server/transport/transport.h"

namespace ballast::collective {

class CollectiveObserver;
class GatheredWeights;
class OwnedWeights;
class PublishedChunks;

// Phases of exchanges, on the wire: in the low byte; above it the batch of the
// bucket (batch_cut.h), in the upper byte the round of an exchange that takes
// several.
inline constexpr uint32_t kReducePhase = 2;
inline constexpr uint32_t kPublishPhase = 3;
inline constexpr uint32_t kBroadcastPhase = 4;
inline constexpr uint32_t kResyncPhase = 5;
inline constexpr uint32_t kProbePhase = 6;   // and the next two: link_probe.h
inline constexpr uint32_t kGroupsPhase = 9;  // between partition groups

constexpr uint32_t PhaseOnWire(uint32_t phase, size_t batch) {
  return phase | static_cast<uint32_t>(batch) << 8;
}
constexpr uint32_t PhaseOf(uint32_t on_wire) { return on_wire & 0xff; }

struct Reduced {
  // Over the elements this node owns; of those that a node of every partition
  // group owns, in the first group only.
  kernels::ExactSum norm2;
  bool finite = true;  // all of them

  void Merge(const Reduced& other) {
    norm2.Merge(other.norm2);
    finite = finite && other.finite;
  }
};

struct ByteCounts {
  // Of buckets: payload, padding and headers, between nodes. Of parts that are
  // gathered too.
  uint64_t wire_sent = 0;
  uint64_t wire_received = 0;
  // What the policy's formula says of finished exchanges
  // (layout::ExchangePlan::PerStep), without alignment and headers.
  uint64_t payload_sent = 0;
  // Of the broadcast at start-up, with headers; not part of the others.
  uint64_t broadcast_sent = 0;
  uint64_t broadcast_received = 0;
  // Of published bits that were only compared (delta mode); likewise.
  uint64_t resync_sent = 0;
  uint64_t resync_received = 0;
  // Of healing damaged chunks, without headers; likewise.
  uint64_t heal_sent = 0;
  uint64_t heal_received = 0;
};

struct Parts {
  const layout::Layout* layout = nullptr;
  NodeRank node;
  uint64_t job_key = 0;  // names the job in transport frames
  const kernels::Kernels* kernels = nullptr;
  base::ComputePool* pool = nullptr;
  device::Device* device = nullptr;                   // scratch
  transport::Transport* transport = nullptr;          // null with one node
  std::vector<std::span<const std::byte>> gradients;  // per local rank
  std::span<std::byte> weights;  // the node's published segment
  std::span<float> state_gradient;
  // Null: exact. Needs `master`, of the same elements as the state gradient,
  // if it quantizes weights.
  // Revise changes it; kept from generation to generation.
  layout::ExchangePlan* plan = nullptr;
  std::span<const float> master = {};
  // Where the plan encodes deltas: of the weights as they are, and kept from
  // generation to generation.
  PublishedChunks* published = nullptr;
  // How damaged chunks are healed; null: damage ends the operation. Needs
  // `executor`. A node that does not answer for `pull_timeout` is passed over.
  transport::Pulls* pulls = nullptr;
  base::Executor* executor = nullptr;
  absl::Duration pull_timeout = absl::InfiniteDuration();
  std::function<void(const std::string&)> log = nullptr;  // a line per heal
  // Where the plan feeds errors back, kept from generation to generation; and
  // the updates applied so far, which say what of them counts.
  optimizer::Residuals* residuals = nullptr;
  int64_t optimizer_step = 0;
  optimizer::UpdateGuard* guard = nullptr;  // of residuals; null: nobody looks
  // Where weights are not resident (gathered_weights.h), both: nothing is
  // written to `weights` then, and the masters' new values go nowhere by
  // themselves. They outlive generations.
  OwnedWeights* owned = nullptr;
  GatheredWeights* gathered = nullptr;
  // Then, on the node that broadcasts: what its owners get.
  std::span<const std::byte> initial = {};
  int buckets_in_flight = 8;
  // What a batch of a bucket takes at least, if the bucket has as much; the
  // same on every node. A message's header is 112 bytes, and a part costs
  // three or four, so this keeps them below 0.5 %.
  int64_t batch_bytes = 128 << 10;
  // `exact`, where every node has one sum and the nodes are a power of two:
  // whether reductions whose parts have so many bytes are added on their way
  // (halving_reducer.h). The same answer on all nodes; null: none.
  std::function<bool(uint64_t part_bytes)> halves = nullptr;
  const base::Clock* clock = nullptr;  // null: times() stay zero
  CollectiveObserver* observer = nullptr;
};

// InvalidArgument if they do not fit their layout, or one another.
absl::Status CheckParts(const Parts& parts);

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_PARTS_H_
