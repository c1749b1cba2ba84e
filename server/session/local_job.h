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
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/control_block.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/base/vault.h"
#include "server/device/device.h"
#include "server/ipc/control_block_view.h"
#include "server/layout/gather_units.h"
#include "server/layout/layout.h"
#include "server/session/closing.h"
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

// What the vault calls a worker of a job.
std::string WorkerName(LocalRank rank);

class LocalJob {
 public:
  // Allocates the segments (zeroed; where the device adopts them, TakeOver
  // follows). `spec` and `layout` were checked. Wakes are posted to `executor`,
  // one per turn: many stores, one system call. `vault`: where workers are
  // left for the next daemon; null: nowhere.
  static absl::StatusOr<std::unique_ptr<LocalJob>> Create(
      device::Device* device, base::Executor* executor, JobSpec spec,
      layout::Layout layout, NodeRank node, uint32_t uid = 0,
      base::Vault* vault = nullptr);
  ~LocalJob();

  void set_observer(JobObserver* observer) { observer_ = observer; }

  const JobSpec& spec() const { return spec_; }
  const layout::Layout& layout() const { return layout_; }
  NodeRank node() const { return node_; }
  // Whose job it is.
  uint32_t uid() const { return uid_; }
  int local_world_size() const { return layout_.topology().local_world_size; }
  Rank RankOf(LocalRank rank) const;
  JobState state() const;
  uint64_t segment_bytes() const;

  // Rank 0, which is here, gives values to begin with.
  bool has_initial_values() const { return has_initial_values_; }

  // Borrowed memory for collective and optimizer.
  std::span<const std::byte> gradients(LocalRank rank) const;
  std::span<std::byte> weights();

  // Of a stored state, before the first Open: what workers are told at Begin.
  // `cursors` by local rank, or none; rank 0's is told to all ranks.
  // `source`: what they are from, in words.
  void Restore(int64_t optimizer_step,
               std::vector<kernels::HyperParameters> groups,
               std::vector<std::string> cursors, std::string rank0_cursor,
               std::string source = "");
  // The job ran when the last daemon ended, or was suspended, or its first
  // weights are here and other nodes may still lack theirs: before its next
  // Open here, which looks at all that workers left once more. `step`
  // is the one whose commit is carried out next, or the open one; weights of
  // the version before it are published. What its control blocks say of later
  // steps stays. is_open: it is the open one. `aborted`: why it was aborted in
  // the generation before, where that is the last outcome: the first Open tells
  // whoever was not told.
  void TakeOver(Generation generation, Step step, bool is_open,
                const absl::Status& aborted = absl::OkStatus());
  // What rank 0 committed with the last step, where another node knows it.
  void RestoreRank0Cursor(std::string_view cursor) {
    rank0_cursor_.assign(cursor);
  }
  // Nothing that workers do is looked at, and no Begin answered, until TakeOver
  // and the Open after it: what the job does next is being agreed upon.
  void Suspend();
  // Null: all weights are resident. Otherwise the segment is sparse.
  const layout::GatherUnits* units() const {
    return units_.has_value() ? &*units_ : nullptr;
  }
  device::SharedBuffer* weights_buffer() { return weights_.get(); }
  // Rank 0's initial values, where weights are not resident; null if it is not
  // here, or once they were taken.
  std::unique_ptr<device::SharedBuffer> TakeInitial() {
    return std::move(initial_);
  }

  // ---- The engine's port (engine::WorkerPort says when). ----

  // The first Open also says that weights of version step - 1 are published,
  // and answers the workers that wait in Begin.
  void Open(Generation generation, Step step);
  void Consumed(BucketId bucket, Generation generation, Step step);
  void Published(BucketId bucket, Generation generation, Step step);
  void Committed(const ipc::StepReport& report, std::string_view rank0_cursor);
  void Finished(const ipc::StepReport& report);
  void Aborted(Step step, Generation next, const absl::Status& why);

  // After Adopt, before the first Open: what the control blocks of living
  // workers say is held, with the request that wants it now. `adopt` true: it
  // is. False: it is not any more, and the next Open asks for it once more. A
  // worker may have written anything; units and ranks are in bounds.
  void RestoreHeld(
      absl::FunctionRef<bool(LocalRank rank, int unit, uint64_t request,
                             WeightVersion version)>
          adopt);
  // What became of a request (JobObserver::OnWanted).
  void StoreHeld(LocalRank rank, int unit, uint64_t request,
                 proto::HeldState state, WeightVersion version);
  void Refuse(LocalRank rank, int unit, uint64_t request,
              const absl::Status& why);

  // ---- The workers' side (Sessions). ----

  // Refuses with AlreadyExists (slot taken; names the pid), FailedPrecondition
  // (slot closed, job failed). Sends the segments over `link`.
  absl::StatusOr<AttachReply> Attach(LocalRank rank, WorkerLink* link,
                                     bool has_initial_values);
  // A worker of the last daemon that lives on, or has closed the job (then
  // maybe without a link): before TakeOver.
  void Adopt(LocalRank rank, WorkerLink* link, bool is_closed);
  // Rank 0's initial values are taken from its segment here, once.
  void Begin(LocalRank rank, BeginDone done);
  // Answers a Begin that still waits with `status`; false if none does.
  bool CancelBegin(LocalRank rank, const absl::Status& status);
  void OnDoorbell(LocalRank rank);
  // The socket closed, the process died or (Cancelled) detached; the slot is
  // free again.
  void OnLinkGone(LocalRank rank, const absl::Status& why);
  // A step that needs more of a rank that closed can never be committed:
  // whoever called step in it is told so (fatal), then or later. Who only
  // closes hears nothing.
  void Close(LocalRank rank);
  // The same for a rank of another node.
  void OnClosedElsewhere(const EarlyClose& close);
  // The job's end, told to every worker (fatal); waiting Begins are answered.
  // No observer call follows. Idempotent.
  void Fail(const absl::Status& why);

  // ---- What can be asked. ----

  const Slot& slot(LocalRank rank) const { return *slots_[rank.value()]; }
  bool has_begun() const { return open_.has_value(); }
  bool all_ready() const;
  int Count(SlotState state) const;
  int num_attached() const;  // attached or ready
  int num_missing() const { return Count(SlotState::kMissing); }
  int num_closed() const { return Count(SlotState::kClosed); }
  // Of this node's ranks the one that closed first, for the other nodes.
  std::optional<EarlyClose> early_close() const;
  // Ranks have closed, here or elsewhere, and no worker that is left or may be
  // replaced can do more than close too.
  bool is_over() const;
  int buckets_pushed(LocalRank rank) const;  // of the open step
  // Somebody is in its slot, and has not begun or not handed over the open
  // step.
  bool owes(LocalRank rank) const;
  // "rank 2 has not attached, rank 3 (pid 4711) has not begun"; empty if all
  // are there.
  std::string Missing() const;
  // Who has closed the job and who has not; empty if nobody has.
  std::string Closing() const;
  // Missing(), and if all are there what the observer knows.
  std::string WaitingFor() const;
  const std::string& last_failure() const { return last_failure_; }

 private:
  struct OpenStep {
    Generation generation;
    Step step;
    uint64_t word() const {
      return proto::SequenceWord(generation.value(), step.value());
    }
  };

  LocalJob(device::Device* device, base::Executor* executor, JobSpec spec,
           layout::Layout layout, NodeRank node, uint32_t uid,
           base::Vault* vault);
  SlotsView view() const { return {slots_, RankOf(LocalRank(0))}; }
  absl::Status SendSegments(LocalRank rank, bool needs_initial);
  void KeepWhatWasLeft(Slot& slot);
  void StoreState(Slot& slot);
  void ScanSlot(LocalRank rank);
  void TakeInput(LocalRank rank);
  void TakeWanted(LocalRank rank);
  void DropWanted(LocalRank rank);
  void AnswerBegin(LocalRank rank);
  void AnswerBegins();
  void StorePendingAbort();
  void TellIfHopeless(LocalRank rank);
  void WakeLater();
  void WakeNow();

  device::Device* const device_;
  base::Executor* const executor_;
  const JobSpec spec_;
  const layout::Layout layout_;
  const NodeRank node_;
  const uint32_t uid_;
  base::Vault* const vault_;  // null: none
  JobObserver* observer_ = nullptr;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::optional<layout::GatherUnits> units_;
  std::unique_ptr<device::SharedBuffer> weights_;
  std::unique_ptr<device::SharedBuffer> initial_;  // with units_, at the start
  std::optional<OpenStep> open_;
  // An abort that workers are told of together with the new open word.
  struct PendingAbort {
    uint64_t word;
    absl::Status why;
  };
  std::optional<PendingAbort> pending_abort_;
  std::optional<EarlyClose> closed_elsewhere_;  // the earliest
  int64_t optimizer_step_ = 0;
  std::string rank0_cursor_;        // last committed
  std::vector<uint64_t> consumed_;  // last stored word, per bucket
  std::vector<uint64_t> published_;
  std::optional<ipc::StepReport> reports_[2];     // by step & 1
  std::vector<kernels::HyperParameters> groups_;  // last committed
  std::vector<BucketId> scratch_;                 // of one scan
  std::vector<int> scratch_units_;
  // Until the first Open, which looks at what all workers, also those that are
  // gone, left in their control blocks: nothing is looked at.
  bool is_taken_over_ = false;
  bool has_initial_values_ = false;
  std::string source_;  // of a stored state
  bool is_failed_ = false;
  bool is_wake_posted_ = false;
  std::string last_failure_;
  std::shared_ptr<bool> alive_;  // weak in posted wakes
};

}  // namespace ballast::session

#endif  // SERVER_SESSION_LOCAL_JOB_H_
