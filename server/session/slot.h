// One local rank's place in a job: its segments, and the daemon's own account
// of what the worker in it has handed over. What the worker may write is never
// trusted: a word counts only if it is the one asked for and was not yet
// taken.
//
//   missing --Occupy--> attached --MakeReady--> ready --Close--> closed
//      ^------------------ Vacate ----------------'
//
// Threading: control thread only. Owns its segments, borrows the link.
#ifndef SERVER_SESSION_SLOT_H_
#define SERVER_SESSION_SLOT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
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

namespace ballast::session {

enum class SlotState { kMissing, kAttached, kReady, kClosed };
std::string_view Name(SlotState state);

using BeginDone = absl::AnyInvocable<void(absl::StatusOr<BeginReply>) &&>;

class Slot {
 public:
  // Allocates control block and gradients: zeroed, or where the device adopts
  // them as a worker of an earlier life left them. `layout` outlives it.
  static absl::StatusOr<std::unique_ptr<Slot>> Create(
      device::Device* device, const layout::Layout* layout, int num_groups,
      std::string_view job, LocalRank rank, int num_units);

  SlotState state() const { return state_; }
  bool is_occupied() const { return link_ != nullptr; }
  bool is_free() const { return state_ == SlotState::kMissing; }
  // Somebody is or was in it: the control block may be looked at.
  bool was_occupied() const { return was_occupied_; }
  // Of the worker in it, or the last one; zeros if there was none.
  const WorkerIdentity& identity() const { return identity_; }
  uint64_t size_bytes() const;

  // What was taken is looked for, and taken, again.
  void Forget();
  // A fresh control block for a new worker; gradients of buckets that do not
  // carry `open_word` are zeroed.
  absl::Status Occupy(WorkerLink* link, uint64_t open_word);
  // The worker that was ready in it when the last daemon ended.
  void Adopt(WorkerLink* link);
  void MakeReady() { state_ = SlotState::kReady; }
  void Close() { state_ = SlotState::kClosed; }
  // The link is gone; a closed slot stays closed. Waiting Begins must have
  // been answered. `was_lost`: the worker did not say that it leaves.
  void Vacate(bool was_lost);
  bool was_lost() const { return was_lost_; }

  device::SharedBuffer* gradients() { return gradients_.get(); }
  const device::SharedBuffer* gradients() const { return gradients_.get(); }
  device::SharedBuffer* control() { return control_.get(); }
  ipc::ControlBlockView& view() { return view_; }
  WorkerLink* link() { return link_; }
  const WorkerLink* link() const { return link_; }
  void set_initial(std::unique_ptr<device::SharedBuffer> initial) {
    initial_ = std::move(initial);
  }
  std::unique_ptr<device::SharedBuffer> TakeInitial() {
    return std::move(initial_);
  }

  // Appends the buckets whose word is `open_word` for the first time.
  void TakePushed(uint64_t open_word, std::vector<BucketId>* pushed);
  bool IsTaken(BucketId bucket, uint64_t open_word) const {
    return taken_[bucket.value()] == open_word;
  }
  int CountTaken(uint64_t open_word) const;

  // Appends the units whose request has changed; only growing ones count.
  void TakeWanted(std::vector<int>* changed);
  uint64_t wanted(int unit) const { return wanted_[unit]; }
  // Of an adopted worker: the request was answered by an earlier life.
  void RestoreWanted(int unit, uint64_t request) { wanted_[unit] = request; }
  // As if the worker wanted nothing any more; appends what it wanted.
  void DropWanted(std::vector<int>* dropped);
  // Has handed over all of the step of `open_word`; has called step in it.
  bool IsComplete(uint64_t open_word) const {
    return taken_input_ == open_word &&
           CountTaken(open_word) == static_cast<int>(taken_.size());
  }
  bool HasInput(uint64_t open_word) const { return taken_input_ == open_word; }

  // True if the step input of `open_word` is there for the first time and
  // could be read: then groups() and open_cursor() are its values. An error
  // also counts as taken.
  absl::StatusOr<bool> TakeInput(uint64_t open_word);
  const std::vector<proto::GroupValues>& groups() const { return groups_; }
  const std::string& open_cursor() const { return open_cursor_; }

  // The input of `word` is part of a committed step from now on.
  void CommitInput(uint64_t word);
  const std::string& cursor() const { return cursor_; }  // committed
  // Of a stored state.
  void RestoreCursor(std::string cursor) { cursor_ = std::move(cursor); }

  // Words that made no sense, since the worker attached.
  uint64_t ignored() const { return ignored_; }

  BeginDone begin_done;  // answered when the job runs or fails

 private:
  explicit Slot(const layout::Layout* layout) : layout_(layout) {}
  void KeepContribution(uint64_t open_word);
  void ZeroGradients(const layout::Bucket& bucket);
  void Ignore(uint64_t word, uint64_t* last_seen);

  const layout::Layout* const layout_;
  SlotState state_ = SlotState::kMissing;
  WorkerLink* link_ = nullptr;
  WorkerIdentity identity_;
  bool was_occupied_ = false;
  bool was_lost_ = false;
  std::unique_ptr<device::SharedBuffer> control_;
  std::unique_ptr<device::SharedBuffer> gradients_;
  std::unique_ptr<device::SharedBuffer> initial_;  // rank 0, until Begin
  ipc::ControlBlockView view_;
  int num_groups_ = 0;
  std::vector<uint64_t> taken_;        // last word accepted, per bucket
  std::vector<uint64_t> seen_;         // last word looked at, per bucket
  std::vector<uint64_t> wanted_;       // last request accepted, per unit
  std::vector<uint64_t> seen_wanted_;  // last one looked at, per unit
  uint64_t taken_input_ = 0;
  uint64_t seen_input_ = 0;
  uint64_t ignored_ = 0;
  std::vector<proto::GroupValues> groups_;
  std::string open_cursor_;
  std::string cursor_;
};

}  // namespace ballast::session

#endif  // SERVER_SESSION_SLOT_H_
