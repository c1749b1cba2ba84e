// Carries files of replicas between the nodes of a job, by pulls: serves what
// this node holds, at any time, and fetches what another one holds, slice by
// slice.
//
// What training sends goes first: while one of its exchanges is under way the
// next slice waits, but no longer than kPatience, so that a link that is never
// idle delays a replica and does not starve it. `max_bytes_per_second` bounds
// it on top of that.
//
// Threading: control thread only. `done` is never called from inside a call,
// nor after Cancel, which leaves the file untouched.
// Ownership: borrows its parts and the Pulls, until SetPulls(nullptr). Files
// that are being sent are kept until they are.
#ifndef SERVER_SNAPSHOT_SHARD_COURIER_H_
#define SERVER_SNAPSHOT_SHARD_COURIER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/snapshot/files/held_files.h"
#include "server/transport/pulls.h"

namespace ballast::snapshot {

// Of the pulls (chunk_source.h and gathered_weights.h have others).
inline constexpr uint32_t kReplicaPull = 32;
// Unless a file ends before; from its start.
inline constexpr uint64_t kCourierSliceBytes = 1 << 20;
inline constexpr absl::Duration kPatience = absl::Milliseconds(50);

class ShardCourier final : public transport::PullSource {
 public:
  using Done = absl::AnyInvocable<void(const absl::Status&) &&>;
  // The file that this node holds under these numbers; null: none. They come
  // from a peer.
  using Find =
      std::function<std::shared_ptr<HeldFile>(int64_t version, int shard)>;

  struct Parts {
    const base::Clock* clock = nullptr;
    base::Executor* executor = nullptr;
    Find find;
    uint64_t max_bytes_per_second = 0;  // 0: no bound
    std::function<bool()> is_busy;      // null: training sends nothing
    int window = 1;                     // slices under way
  };

  struct Order {
    NodeRank from;
    int64_t version = 0;
    int shard = 0;
    std::shared_ptr<HeldFile> file;
    uint64_t begin = 0;  // bytes; whole slices are fetched
    uint64_t end = 0;
  };

  explicit ShardCourier(Parts parts);
  ~ShardCourier() override;

  // Null: there are no links (any more). A fetch that is under way fails.
  void SetPulls(transport::Pulls* pulls);

  // One at a time. Unavailable: there is no link; else as Pulls say.
  void Fetch(Order order, Done done);
  void Cancel();
  bool is_fetching() const { return order_.has_value(); }

  uint64_t bytes_sent() const { return bytes_sent_; }
  uint64_t bytes_received() const { return bytes_received_; }

  // transport::PullSource
  void OnPull(NodeRank from, const transport::PullKey& key,
              transport::PullReply reply) override;

 private:
  absl::Duration Wait();
  void Pump();
  absl::Status PullNext();
  void OnSlice(transport::PullId id, uint64_t size, const absl::Status& status);
  void End(const absl::Status& status);
  void Stop();

  const Parts parts_;
  transport::Pulls* pulls_ = nullptr;
  std::optional<Order> order_;
  Done done_;
  uint64_t fetch_ = 0;  // grows as they end: what is posted of an earlier one
  uint64_t next_ = 0;   // offset of the next slice
  std::vector<transport::PullId> pulling_;
  absl::Time due_ = absl::InfinitePast();  // of the next slice, by the rate
  absl::Time busy_since_ = absl::InfiniteFuture();
  base::TimerId timer_ = 0;
  uint64_t bytes_sent_ = 0;
  uint64_t bytes_received_ = 0;
  std::shared_ptr<int> alive_;  // weak in what is posted
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_SHARD_COURIER_H_
