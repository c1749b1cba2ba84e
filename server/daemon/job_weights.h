// The weights of one job on one node where no node keeps all of them
// (secondary_partition=none): wires what the node owns and what its workers
// have gathered to the job's workers, metrics and collective.
//
//   Create -> AddTo(optimizer, snapshots, collective) -> [SetPulls]
//   -> TakeInitial, or its places are loaded -> Begin(version)
//   -> { OnCommit -> OnPublished of each bucket }* -> Stop
//   Links lost: Suspend -> [idle] -> SetPulls -> GoOn(version)
//   Another daemon's: Create -> TakeOver -> AddTo -> [SetPulls] -> GoOn
//
// What outlives the daemon: the node's own parts; the segment, and what it
// holds, as the workers' control blocks say. All else is asked for again.
//
// Threading: control thread only.
// Ownership: keeps its memory; borrows all parts. Outlives collective and
// optimizer steps; destroyed before the pulls it was given.
#ifndef SERVER_DAEMON_JOB_WEIGHTS_H_
#define SERVER_DAEMON_JOB_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/admin.pb.h"
#include "server/base/ids.h"
#include "server/collective/gathered_weights.h"
#include "server/collective/owned_weights.h"
#include "server/collective/parts.h"
#include "server/device/device.h"
#include "server/metrics/metrics.h"
#include "server/optimizer/optimizer.h"
#include "server/session/local_job.h"
#include "server/snapshot/encoded_weights.h"
#include "server/snapshot/job_snapshots.h"
#include "server/snapshot/weight_places.h"
#include "server/transport/pulls.h"

namespace ballast::daemon {

class JobWeights final : private collective::GatherObserver,
                         private snapshot::EncodedWeights {
 public:
  struct Parts {
    session::LocalJob* job;
    // layout, node, job_key, kernels, pool, device, plan, master.
    const collective::Parts* collective;
    metrics::JobMetrics* metrics;  // null: none
    // A part cannot be had: the job cannot go on, at least not with these
    // links (Unavailable).
    absl::AnyInvocable<void(const absl::Status& why)> on_failed;
  };
  // Of a job whose weights are not resident. ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<JobWeights>> Create(Parts parts);

  // An earlier daemon left it. `is_updated`: the state is that of an update
  // since the job was opened, not of initial or stored values.
  void TakeOver(bool is_updated);

  void AddTo(optimizer::Parts* parts);
  void AddTo(snapshot::JobSnapshots::Parts* parts);
  void AddTo(collective::Parts* parts);
  void SetPulls(transport::Pulls* pulls) { gathered_->SetPulls(pulls); }
  void SetGeneration(Generation generation) {
    gathered_->SetGeneration(generation);
  }

  // Where the node's own parts are, in their own type: to be stored, and filled
  // from what was.
  snapshot::WeightPlaces places();
  // Node 0: rank 0's initial values; its own parts are taken out of them, the
  // rest is for the broadcast. They go when the first step is open (Begin), or
  // at once if the job goes on from what was stored.
  void TakeInitial(bool is_loaded);
  void Begin(WeightVersion version);

  void OnWanted(LocalRank rank, int unit, uint64_t request);
  // Calls `carry_out`, now or once nothing reads the old version any more; not
  // if Suspend comes first.
  void OnCommit(absl::AnyInvocable<void() &&> carry_out);
  void OnPublished(BucketId bucket, WeightVersion version);

  // The links are lost. `when_idle`: tasks that were started are done.
  void Suspend(absl::AnyInvocable<void() &&> when_idle);
  // All nodes have agreed on the version that is, or with the next commit
  // becomes, the job's. Before the engine goes on; after AddTo(collective).
  void GoOn(WeightVersion version, bool is_published);

  void Stop(absl::AnyInvocable<void() &&> when_idle);
  bool is_idle() const { return gathered_->is_idle(); }

  v1::GatherStatus Status() const;
  uint64_t size_bytes() const;  // owned and gathered, now
  std::string WaitingFor() const;

 private:
  explicit JobWeights(Parts parts) : parts_(std::move(parts)) {}

  void OnHeld(LocalRank rank, int unit, uint64_t request,
              WeightVersion version) override;
  void OnNotHeld(LocalRank rank, int unit, uint64_t request) override;
  void OnRefused(LocalRank rank, int unit, uint64_t request,
                 const absl::Status& why) override;
  void OnGatherFailed(const absl::Status& why) override;
  bool is_encoded() const override { return owned_->are_all_coded(); }
  void Decode(int64_t chunk, size_t piece, std::span<float> scratch,
              std::span<std::byte> into) const override {
    owned_->DecodeOwn(chunk, piece, scratch, into);
  }
  void RestoreHeld(WeightVersion version);
  void TellMetrics();

  Parts parts_;
  std::unique_ptr<collective::OwnedWeights> owned_;
  std::unique_ptr<collective::GatheredWeights> gathered_;
  std::unique_ptr<device::SharedBuffer> initial_;
  bool is_taken_over_ = false;  // until GoOn
  collective::GatheredWeights::Counts told_;
  metrics::Counter* pulled_ = nullptr;  // null without metrics, all of them
  metrics::Counter* served_ = nullptr;
  metrics::Counter* held_ = nullptr;
  metrics::Counter* refused_ = nullptr;
  metrics::Counter* waits_ = nullptr;
  metrics::Gauge* resident_ = nullptr;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_JOB_WEIGHTS_H_
