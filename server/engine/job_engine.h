// One job on one node: takes its buckets through
//
//   collecting -> reducing -> reduced -> (vote, commit) -> updating
//              -> publishing -> collecting, of the next step
//
// The next step opens at the commit: a bucket that was pushed for it while the
// last step is still being published is reduced as soon as it is itself
// published. A vote needs all buckets reduced, so it also says that the step
// before is published here.
//
// An engine only decides: arithmetic is in collective and optimizer, workers
// and nodes are behind ports, time is an argument. After a commit nothing can
// fail but this node itself; if it does, the job ends (MemberPort::Leave).
// Events that cannot be (late, repeated, of no bucket) change nothing and are
// counted as strays.
//
// Threading: control thread only.
#ifndef SERVER_ENGINE_JOB_ENGINE_H_
#define SERVER_ENGINE_JOB_ENGINE_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/control_block.h"
#include "proto/peer.pb.h"
#include "server/base/clock.h"
#include "server/base/ids.h"
#include "server/collective/collective.h"
#include "server/engine/ports.h"
#include "server/layout/layout.h"
#include "server/layout/metering.h"
#include "server/metrics/metrics.h"
#include "server/optimizer/optimizer.h"

namespace ballast::engine {

struct Parts {
  const layout::Layout* layout = nullptr;
  NodeRank node;
  const base::Clock* clock = nullptr;
  optimizer::ShardState* state = nullptr;
  optimizer::Optimizer* optimizer = nullptr;
  WorkerPort* workers = nullptr;
  MemberPort* members = nullptr;
  LoadPort* loads = nullptr;
  metrics::JobMetrics* metrics = nullptr;      // null: none
  std::string_view transport_name = "inproc";  // metrics label
  // What this node would send in a step if nothing were quantized; 0: nothing
  // is.
  uint64_t exact_bytes = 0;
  // How WaitingFor calls a rank; empty: "rank 2".
  std::function<std::string(LocalRank)> rank_name = nullptr;
};

struct Counts {
  int64_t committed = 0;  // skipped ones included
  int64_t skipped = 0;
  int64_t loaded = 0;
  int64_t aborted = 0;
  int64_t strays = 0;
  // Of published weights, as of the last finished step.
  uint64_t chunks_bad = 0;
  uint64_t chunks_healed = 0;
};

// What workers are told.
absl::Status WhyAborted(const v1::Abort& abort);

class JobEngine : public optimizer::UpdateObserver,
                  public collective::CollectiveObserver {
 public:
  static std::unique_ptr<JobEngine> Create(const Parts& parts);

  // A view is in force and weights of version `open_step - 1` are published
  // here; `collective` belongs to this generation and outlives its use. After
  // an abort: once the last generation's collective is cancelled.
  virtual void Start(Generation generation, Step open_step,
                     collective::Collective* collective) = 0;

  // In place of Start: the commit is recorded, by an earlier life of this node
  // or before Suspend, and some or all of it may be carried out; all nodes
  // carry it out once more, which changes no bit of what is, and the next step
  // opens. `is_loaded`: the weights that it loads, if it does, are. DataLoss if
  // its scalars make no sense; nothing has changed then.
  virtual absl::Status GoOn(Generation generation, const v1::Commit& commit,
                            bool is_loaded,
                            collective::Collective* collective) = 0;

  // In place of Start: the job has committed the step that is open here, of
  // which all buckets are reduced and nothing is recorded. Once the workers'
  // contributions are known again it is recorded and carried out.
  virtual void Adopt(Generation generation, const v1::Commit& commit,
                     collective::Collective* collective) = 0;

  // The links are lost: nothing is expected and nothing starts before one of
  // the three above; updates that were started go on. The collective may be
  // cancelled then.
  virtual void Suspend() = 0;

  // What earlier lives measured of the weights of `step`, for the next vote.
  virtual void RestoreErrors(Step step, v1::PathErrors errors) = 0;
  virtual const v1::PathErrors& published_errors() const = 0;

  // From the workers, checked by the session: of the open step, each once.
  virtual void OnPushed(LocalRank rank, BucketId bucket) = 0;
  virtual void OnStepInput(LocalRank rank,
                           std::span<const proto::GroupValues> groups,
                           std::string cursor) = 0;
  // Values that no optimizer could take: the step will be aborted with `why`.
  virtual void OnStepInputRefused(LocalRank rank, const absl::Status& why) = 0;

  // From membership.
  virtual void OnCommit(const v1::Commit& commit) = 0;
  virtual void OnAbort(const v1::Abort& abort) = 0;
  // Other nodes show other weights: compared and healed, then voted again.
  virtual void OnHeal(const v1::Heal& heal) = 0;

  // Nothing is started any more, whatever comes. Updates that were started go
  // on until OnUpdated.
  virtual void Stop() = 0;
  virtual int updates_in_flight() const = 0;

  virtual Step open_step() const = 0;
  virtual WeightVersion weight_version() const = 0;
  // All ranks of this node have contributed to the open step.
  virtual bool is_collected() const = 0;
  virtual bool is_idle() const = 0;  // nothing in flight, no open commit
  virtual Counts counts() const = 0;
  virtual const StepSummary& last_summary() const = 0;
  // exact_estimate.h; 0 while it is not known.
  virtual double exact_ratio() const = 0;
  // Collective::ResidualNorm, of the last step that was not skipped.
  virtual std::optional<double> residual_norm() const = 0;
  // Of the last step that was not skipped, over all nodes.
  virtual const v1::ErrorReport& last_errors(layout::Path path) const = 0;
  // What LoadPort::StartLoad began has ended well.
  virtual void OnLoaded() = 0;

  // Whom or what the open step waits for ("rank 2 has not pushed 3 of 12
  // buckets of step 118 for 12.3 s"); empty if for nobody.
  virtual std::string WaitingFor(absl::Time now) const = 0;
};

}  // namespace ballast::engine

#endif  // SERVER_ENGINE_JOB_ENGINE_H_
