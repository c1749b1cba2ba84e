// The weights that this node's workers have gathered, where no node keeps all
// of them (secondary_partition=none), and this node's parts as it serves them.
//
//   worker wants unit u ──▶ budget? pages ──▶ pull the others' parts of u,
//                                             copy or decode all into the
//                                             segment ──▶ held, of version v
//   last worker gives it back ──▶ pages of the segment given back
//   commit ──▶ EndVersion: nothing is held, nothing served of the old version
//   own shard of bucket b published ──▶ served, and gathered again if wanted
//   links lost ──▶ Suspend: what is held stays, nothing else is gathered
//   daemon starts again ──▶ Adopt: what lies in the segment already
//   the nodes agree ──▶ Resume(version): held is what has it, the rest is
//                       gathered (again)
//
// Parts are pulled once per node, whoever of its workers wants them, and only
// of the version that this node has published: an owner that is not there yet
// keeps the asker waiting, one that is further refuses, and the asker waits for
// its own commit (I1). Frozen units have version 0 for ever.
//
// Pages are counted per unit that is wanted, so that what is wanted always fits
// into the budget, whatever is on its way: a request beyond it is refused at
// once, or as soon as tasks of gathers that were given up have left their
// pages. Nothing waits for another worker's release.
//
// Threading: control thread; copies and decodes are pool tasks. A gather
// allocates its tasks and, if parts are encoded, a window for them.
// Ownership: borrows all parts; destroyed only when it is stopped and idle.
#ifndef SERVER_COLLECTIVE_GATHERED_WEIGHTS_H_
#define SERVER_COLLECTIVE_GATHERED_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/base/compute_pool.h"
#include "server/base/ids.h"
#include "server/collective/owned_weights.h"
#include "server/device/device.h"
#include "server/transport/pulls.h"

namespace ballast::collective {

// Of transport::PullKey: `bucket` is a unit's index.
inline constexpr uint32_t kGatherPull = 16;

// Control thread, also from inside a call of GatheredWeights.
class GatherObserver {
 public:
  virtual ~GatherObserver() = default;
  virtual void OnHeld(LocalRank rank, int unit, uint64_t request,
                      WeightVersion version) = 0;
  // From now on, until OnHeld says so again.
  virtual void OnNotHeld(LocalRank rank, int unit, uint64_t request) = 0;
  // ResourceExhausted names what was asked for and the bound.
  virtual void OnRefused(LocalRank rank, int unit, uint64_t request,
                         const absl::Status& why) = 0;
  // A part cannot be had. Once: if it is Unavailable nothing more is gathered
  // until Resume, else nothing any more.
  virtual void OnGatherFailed(const absl::Status& why) = 0;
};

class GatheredWeights final : private transport::PullSource {
 public:
  struct Parts {
    OwnedWeights* owned = nullptr;
    device::SharedBuffer* segment = nullptr;  // sparse
    base::ComputePool* pool = nullptr;
    uint64_t limit_bytes = 0;  // of pages; 0: none
    GatherObserver* observer = nullptr;
  };

  struct Counts {
    uint64_t resident_bytes = 0;  // pages of what is wanted, now
    uint64_t limit_bytes = 0;     // 0: none
    uint64_t gathers = 0;         // units that became held
    uint64_t refusals = 0;
    uint64_t waits = 0;  // requests of others that came before the version
    uint64_t payload_pulled = 0;  // by the policy's formula, since the start
    uint64_t payload_served = 0;
    int num_held = 0;  // units, now
    int num_gathering = 0;
  };

  explicit GatheredWeights(const Parts& parts);
  ~GatheredWeights() override;
  GatheredWeights(const GatheredWeights&) = delete;
  GatheredWeights& operator=(const GatheredWeights&) = delete;

  // With several nodes, before the first request. Null again before the pulls
  // go.
  void SetPulls(transport::Pulls* pulls);
  void SetGeneration(Generation generation) { generation_ = generation; }

  // A request of a worker (proto/control_block.h, wanted): odd, it wants the
  // unit held, even, not any more. Each request of a rank is a newer one.
  void OnWanted(LocalRank rank, int unit, uint64_t request);

  // The version of this node's part of the bucket (of all, frozen units too)
  // is complete.
  void OnPublished(BucketId bucket, WeightVersion version);
  void OnAllPublished(WeightVersion version);
  // A commit changes the weights next; WhenIdle says when they may.
  void EndVersion();

  // The links are lost and the pulls go: what was asked of other nodes, and
  // what they asked, is asked anew after Resume; workers still read what they
  // hold. A WhenIdle that waits is dropped.
  void Suspend();
  // Before Resume, in a new life of the daemon: the segment holds the whole
  // unit, which the rank wants by this request. False if there is no room for
  // it: it is as if nothing of it were there.
  bool Adopt(LocalRank rank, int unit, uint64_t request, WeightVersion version);
  // After all of them: pages of the segment that nobody holds go back.
  void DiscardRest();
  // All nodes go on, with this version; is_published: it is complete here, and
  // else OnPublished will say so of each bucket. What is held of another one is
  // not any more.
  void Resume(WeightVersion version, bool is_published);

  // Nothing is gathered or served any more.
  void Stop();
  bool is_idle() const { return num_tasks_ == 0; }
  // Runs `fn`, at once or after the last task in the pool; one at a time.
  void WhenIdle(absl::AnyInvocable<void() &&> fn);

  Counts counts() const;
  // The same but for the units of now, which take a look at each.
  const Counts& totals() const { return counts_; }
  transport::ByteCounters wire() const;  // of all pulls of this node
  // "part of node 1 of bucket 3, version 12, and 2 more"; empty if for none.
  std::string WaitingFor() const;

 private:
  struct Task;
  struct Holder {
    LocalRank rank;
    uint64_t request;
  };
  struct Parked {
    LocalRank rank;
    int unit;
    uint64_t request;
  };
  struct Waiting {
    NodeRank from;
    WeightVersion version;
    transport::PullReply reply;
  };
  enum class State { kAbsent, kGathering, kHeld };
  struct Unit {
    std::vector<Holder> holders;
    State state = State::kAbsent;
    bool is_ready = false;  // the own part, of `version`
    bool is_past = false;   // `version` was ready and will not be again
    bool is_stale = false;  // other nodes are further
    WeightVersion version;
    std::vector<Waiting> waiting;  // other nodes
    // Of the gather under way; tasks of one that was given up may still run.
    uint64_t attempt = 0;
    size_t num_pulls = 0;
    size_t num_tasks = 0;
    std::vector<std::pair<NodeRank, transport::PullId>> pulls;
    std::vector<std::byte> window;  // encoded parts of the others
    std::vector<std::unique_ptr<Task>> tasks;
  };

  void OnPull(NodeRank from, const transport::PullKey& key,
              transport::PullReply reply) override;
  const layout::GatherUnits& units() const { return parts_.owned->units(); }
  std::string NameOf(int unit) const;
  void Want(LocalRank rank, int index, uint64_t request);
  void GiveBack(LocalRank rank, int index);
  void RetryParked();
  bool HasGivenUpTasks() const;
  absl::Status TakePages(int index, bool are_there = false);
  void GiveBackPages(int index);
  void TryGather(int index);
  void StartGather(int index);
  absl::Status PullPart(int index, int owner, std::span<std::byte> into);
  void OnPulled(int index, int owner, uint64_t attempt,
                std::span<const std::byte> part, const absl::Status& status);
  void Place(int index, int owner, std::span<const std::byte> part);
  void Submit(int index, std::function<void(int thread)> run);
  void OnTaskDone(int index);
  void GiveUp(int index);
  void GiveUpGathers();
  void Withhold(int index);
  void FinishIfComplete(int index);
  void Answer(int index);
  void Serve(int index, transport::PullReply reply);
  void Fail(const absl::Status& why);

  const Parts parts_;
  transport::Pulls* pulls_ = nullptr;
  Generation generation_;
  std::vector<Unit> units_;
  std::vector<Parked> parked_;        // no room, while given-up tasks run
  std::vector<uint32_t> page_users_;  // wanted units with bytes in the page
  size_t num_tasks_ = 0;
  bool is_suspended_ = false;
  bool is_stopped_ = false;
  absl::AnyInvocable<void() &&> when_idle_;
  Counts counts_;
  std::shared_ptr<int> alive_;  // weak in what pulls call
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_GATHERED_WEIGHTS_H_
