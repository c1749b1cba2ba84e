// What an engine asks of its neighbours. `server/daemon` connects the ports:
// engine, session and membership never include one another.
//
// Threading: control thread only.
#ifndef SERVER_ENGINE_PORTS_H_
#define SERVER_ENGINE_PORTS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"
#include "server/layout/metering.h"

namespace ballast::engine {

enum class Stage { kCollect, kReduce, kVote, kUpdate, kPublish, kWait };
inline constexpr int kNumStages = 6;

// Of what all nodes sent of a path, sampled (v1::ErrorReport).
struct PathQuality {
  uint64_t sampled = 0;  // elements; 0: nothing was measured
  double relative_error = 0;
  double clipped_share = 0;
  // Of gradients, of this node's: Collective::ResidualNorm.
  std::optional<double> residual_norm = std::nullopt;
  int num_wider = 0;  // tensors that crossed by a wider codec
};

// proto::StepRecord without its words.
struct StepSummary {
  Generation generation;
  Step step;
  bool skipped = false;
  bool loaded = false;  // the weights are those that were given
  WeightVersion weight_version;
  int64_t optimizer_step = 0;
  double grad_norm = 0;
  double clip_factor = 1;
  double lr = 0;
  // By layout::Path: of this step's gradients, of the weights that they were
  // computed from.
  std::array<PathQuality, layout::kNumPaths> quality{};
  // Tensors that crossed by a wider codec than the policy's: gradients of this
  // step and weights after it. And chunks of weights that this node healed.
  uint32_t fallbacks = 0;
  uint64_t wire_bytes_sent = 0;
  uint64_t wire_bytes_received = 0;
  uint64_t payload_bytes = 0;
  double seconds = 0;
  std::array<double, kNumStages> stage_seconds{};
};

// Towards the workers of this node (all of them; stores, then one wake).
class WorkerPort {
 public:
  virtual ~WorkerPort() = default;
  // Contributions to (generation, step) count from now on, no others.
  // At a commit this comes before the Consumed of the step before: whoever may
  // overwrite a gradient may also push it.
  virtual void Open(Generation generation, Step step) = 0;
  virtual void Consumed(BucketId bucket, Generation generation, Step step) = 0;
  virtual void Published(BucketId bucket, Generation generation, Step step) = 0;
  // Called at commit, before the next Open and any Consumed; and once more with
  // the final seconds before the last Published (the record is then complete).
  // `rank0_cursor`: what rank 0 commits with the step, for all ranks.
  virtual void Committed(const StepSummary& summary,
                         std::string_view rank0_cursor) = 0;
  virtual void Finished(const StepSummary& summary) = 0;
  // The step is void and will be open again in `next` (Open follows); `why`
  // says what to mend.
  virtual void Aborted(Step step, Generation next, const absl::Status& why) = 0;
};

// Towards the weights of all nodes.
class LoadPort {
 public:
  virtual ~LoadPort() = default;
  // Rank 0's gradients become the weights of `step` on all nodes, and the
  // masters; answered by JobEngine::OnLoaded, not from inside, or by OnFailed.
  virtual void StartLoad(Step step, bool resets_state) = 0;
};

// Towards the other nodes of the job.
class MemberPort {
 public:
  virtual ~MemberPort() = default;
  virtual void CastVote(const v1::Vote& vote) = 0;
  // This node cannot carry out a step: the job ends everywhere.
  virtual void Leave(const absl::Status& why) = 0;
};

}  // namespace ballast::engine

#endif  // SERVER_ENGINE_PORTS_H_
