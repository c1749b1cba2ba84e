// One job on this node: its slots (one per local rank) and the segments that
// its workers map. It turns what workers write into checked events for the
// JobObserver, and the engine's decisions into stores and wakes.
//
//   starting --first Open--> running --all closed--> closing --> deleted
//       \________ Fail ________|________________________/
//
// Nothing that a worker writes can do more than spoil its own job: each word
// is read once, bounds come from the layout, only a push of the open
// (generation, step) that was not yet taken counts; all else is ignored and
// counted (I19, I26).
//
// Threading: control thread only. The compute pool reads `gradients` and
// writes `weights` on behalf of the job's engine.
// Ownership: keeps its segments; borrows links (until OnLinkGone or Fail) and
// the observer (until it is deleted).
#ifndef SERVER_SESSION_LOCAL_JOB_H_
#define SERVER_SESSION_LOCAL_JOB_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/control_block.h"
#include "server/base/ids.h"
#include "server/device/device.h"
#include "server/ipc/control_block_view.h"
#include "server/layout/layout.h"
#include "server/session/job_spec.h"
#include "server/session/session.h"
#include "server/session/slot.h"

namespace ballast::session {

// gathering: workers are missing; loading: all here, no weights yet; waiting:
// a worker of a running job is missing.
enum class JobState {
  kGathering,
  kLoading,
  kRunning,
  kWaiting,
  kClosing,
  kFailed,
};
std::string_view Name(JobState state);

class LocalJob {
 public:
  using BeginDone = absl::AnyInvocable<void(absl::StatusOr<BeginReply>) &&>;

  // Allocates the segments (zeroed). `spec` and `layout` were checked.
  static absl::StatusOr<std::unique_ptr<LocalJob>> Create(
      device::Device* device, JobSpec spec, layout::Layout layout,
      NodeRank node);
  ~LocalJob();

  void set_observer(JobObserver* observer) { observer_ = observer; }

  const JobSpec& spec() const { return spec_; }
  const layout::Layout& layout() const { return layout_; }
  NodeRank node() const { return node_; }
  int local_world_size() const { return layout_.topology().local_world_size; }
  JobState state() const;
  uint64_t segment_bytes() const;

  // Borrowed memory for collective and optimizer.
  std::span<const std::byte> gradients(LocalRank rank) const;
  std::span<std::byte> weights();

  // ---- The engine's port (engine::WorkerPort says when). ----

  // The first Open also says that weights of version step - 1 are published,
  // and answers the workers that wait in Begin.
  void Open(Generation generation, Step step);
  void Consumed(BucketId bucket, Generation generation, Step step);
  void Published(BucketId bucket, Generation generation, Step step);
  void Committed(const ipc::StepReport& report);
  void Finished(const ipc::StepReport& report);
  void Aborted(Step step, Generation next, const absl::Status& why);
  // The job's end: told to every worker (fatal), links closed, waiting Begins
  // answered. No observer call follows.
  void Fail(const absl::Status& why);

  // ---- The workers' side (Sessions). ----

  // Refuses with AlreadyExists (slot taken; names the pid), FailedPrecondition
  // (slot closed, job failed). Sends the segments over `link`.
  absl::StatusOr<AttachReply> Attach(LocalRank rank, WorkerLink* link,
                                     bool has_initial_values);
  // Rank 0's initial values are taken from its segment here, once.
  void Begin(LocalRank rank, BeginDone done);
  // Answers a Begin that still waits with `status`; false if none does.
  bool CancelBegin(LocalRank rank, const absl::Status& status);
  void OnDoorbell(LocalRank rank);
  // The socket closed, the process died or detached; the slot is free again.
  void OnLinkGone(LocalRank rank, const absl::Status& why);
  void Close(LocalRank rank);

  // ---- What can be asked. ----

  const Slot& slot(LocalRank rank) const { return slots_[rank.value()]; }
  bool has_begun() const { return open_.has_value(); }
  bool all_ready() const;
  int num_attached() const;
  int num_missing() const;
  int num_closed() const;
  // "rank 2 has not attached, rank 3 (pid 4711) has not begun"; empty if all
  // are there.
  std::string Missing() const;
  const std::string& last_failure() const { return last_failure_; }

 private:
  struct OpenStep {
    Generation generation;
    Step step;
    uint64_t word() const {
      return proto::SequenceWord(generation.value(), step.value());
    }
  };

  LocalJob(JobSpec spec, layout::Layout layout, NodeRank node);
  Rank RankOf(LocalRank rank) const;
  void InitializeControlBlock(Slot& slot);
  void ZeroUnpushedGradients(Slot& slot);
  absl::Status SendSegments(Slot& slot, WorkerLink* link);
  void Scan(LocalRank rank);
  void ReadStepInput(LocalRank rank);
  void AnswerBegin(LocalRank rank);
  void StoreFailure(Slot& slot, const absl::Status& why, bool fatal,
                    uint64_t word);
  void Wake(Slot& slot);
  bool IsTaken(const Slot& slot, int bucket) const;

  const JobSpec spec_;
  const layout::Layout layout_;
  const NodeRank node_;
  JobObserver* observer_ = nullptr;
  std::vector<Slot> slots_;
  std::unique_ptr<device::SharedBuffer> weights_;
  bool has_initial_ = false;
  std::optional<OpenStep> open_;
  bool is_accepting_ = false;  // pushes of the open step count
  uint64_t committed_word_ = 0;
  int64_t optimizer_step_ = 0;
  std::vector<uint64_t> consumed_;   // last stored word, per bucket
  std::vector<uint64_t> published_;
  std::optional<ipc::StepReport> reports_[2];  // by step & 1
  std::vector<kernels::HyperParameters> groups_;  // last committed
  bool is_failed_ = false;
  std::string last_failure_;
};

}  // namespace ballast::session

#endif  // SERVER_SESSION_LOCAL_JOB_H_
