// A worker's session with its daemon: one rank of one job.
//
//   ASSIGN_OR_RETURN(auto worker, Worker::Open(options));
//   for (;;) {
//     … forward and backward over params(), gradients into grads() …
//     auto result = worker->Step({.cursor = position});
//     if (ResumeStep(result.status())) continue;  // repeat open_step()
//     RETURN_IF_ERROR(result.status());
//   }
//
// Step path: stores into the control block, one byte on the handle socket, a
// futex. No gRPC, no allocation after the first step.
//
// Threading: thread-compatible: one call at a time. Params and grads are
// shared memory: params change between commit and publish of a step only.
// Fork: a forked child may touch nothing; every call there is refused, and
// destroying the Worker there does nothing.
// Ownership: params() and grads() live as long as the Worker. Detach and Close
// freeze them: copies of that moment, at the same addresses. Where weights are
// not resident (secondary_partition=none), params() are there from Gather to
// GiveBack, Detach or Close, and not frozen.
// A daemon that is replaced while a keeper holds the lease is a pause: waits go
// on, calls are made again.
// Errors: the daemon's code and text. ResumeStep() tells those after which
// the session goes on: compute that step (again). Unavailable: the daemon is
// gone. DeadlineExceeded: says whom the daemon waits for; the call may be
// repeated, with the same values, and then goes on waiting. Cancelled:
// `interrupted` said so; the same holds. After any other error of Step the
// session is over.
#ifndef CLIENT_WORKER_WORKER_H_
#define CLIENT_WORKER_WORKER_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/worker/attachment.h"
#include "client/worker/control_view.h"
#include "client/worker/options.h"
#include "proto/control_block.h"
#include "proto/worker.pb.h"
#include "server/base/clock.h"

namespace ballast::worker {

// The step to compute next, if `status` voided one and the session goes on.
std::optional<int64_t> ResumeStep(const absl::Status& status);

struct StepRequest {
  std::string_view cursor = {};  // at most proto::kMaxCursorBytes
  bool wait_published = true;    // false: return at commit, then Wait()
  absl::Duration timeout = absl::Minutes(10);
  proto::Load load = proto::Load::kNone;  // load_weights.h
};

// A tensor's weights in the segment of all. `fd` is the segment's, opened
// read-only, and closed with the session; -1 if no tensor has elements.
struct WeightsPlace {
  int fd = -1;
  uint64_t segment_bytes = 0;
  uint64_t offset = 0;  // 0 for a tensor of no elements
};

struct SavedSnapshot {
  std::string path;  // below the daemon's snapshots.directory
  int64_t step = 0;
  uint64_t size_bytes = 0;
};

class Worker {
 public:
  // Blocks until the job runs: all ranks attached, weights published here.
  static absl::StatusOr<std::unique_ptr<Worker>> Open(Options options);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Whether a job that existed goes on (initial values were not used).
  // A job that existed goes on.
  bool is_resumed() const {
    return attachment_->attach.resumed() || !resumed_from_.empty();
  }
  // What it goes on from, in words; empty: from where it stood.
  const std::string& resumed_from() const { return resumed_from_; }
  int64_t open_step() const;  // the step to compute
  // Whether this rank's former worker gave all of the open step. It is
  // computed again, for what the caller keeps himself and for ranks that meet
  // in it, over weights that stay as they were; what the former worker gave
  // counts, its cursor too. Weights that are not resident do not stay: then
  // what is computed may be of later ones.
  bool is_step_given() const;
  int64_t generation() const { return proto::GenerationOf(word_); }
  int64_t weight_version() const { return weight_version_; }
  int64_t optimizer_step() const { return optimizer_step_; }
  const std::string& cursor() const { return cursor_; }  // last committed
  // What rank 0 committed with the same step: the same on all ranks.
  const std::string& rank0_cursor() const { return rank0_cursor_; }
  int rank() const { return options_.topology.rank(); }
  // Of the open step: something was pushed; Step was called and is to be
  // repeated.
  bool any_pushed() const { return attachment_->tracker.any_pushed(); }
  bool is_handed_over() const { return is_input_stored_ || is_result_due_; }
  int num_buckets() const { return attachment_->tracker.num_buckets(); }
  int num_tensors() const {
    return static_cast<int>(attachment_->tensors.size());
  }

  // As it was described.
  const v1::Tensor& tensor(int index) const {
    return options_.job.tensors(index);
  }
  // Published weights (read-only mapping); empty for a tensor of no elements.
  std::span<const std::byte> params(int tensor) const;
  // Where they lie, for a caller that maps them once more.
  // FailedPrecondition after Detach and Close.
  absl::StatusOr<WeightsPlace> FindWeights(int tensor);
  // This rank's gradient; empty for frozen tensors too.
  std::span<std::byte> grads(int tensor);

  // Hyperparameters per param group, sent with each step; the caller changes
  // them in place. A resumed job starts with those of its last step.
  std::span<proto::GroupValues> groups() { return groups_; }

  // Hands over one tensor's gradient, which must not change until commit.
  // Pushing twice changes nothing.
  absl::Status Push(int tensor);
  // Pushes the rest, waits for the commit and, unless told otherwise, for all
  // weights of the step.
  absl::StatusOr<StepResult> Step(const StepRequest& request);
  // Until the tensor's (all) weights of the last committed step are there.
  absl::Status Wait(int tensor, absl::Duration timeout);
  absl::Status WaitAll(absl::Duration timeout);

  // Where weights are not resident: whether they are, and a tensor's weights
  // of the last committed step, fetched from their owners. What is gathered is
  // so again after each step, until it is given back. Without `wait` it comes
  // meanwhile (IsHeld, Wait). ResourceExhausted: the node holds too much, the
  // error names what; of these tensors none is gathered that was not before.
  // FailedPrecondition where weights are resident.
  bool gathers_weights() const { return attachment_->holdings.are_gathered(); }
  absl::Status Gather(std::span<const int> tensors, bool wait,
                      absl::Duration timeout);
  absl::Status GiveBack(std::span<const int> tensors);
  // Whether params() may be read now; true where weights are resident.
  bool IsHeld(int tensor) const;

  // One JSON object: this job as the daemon sees it.
  absl::StatusOr<std::string> Stats(absl::Duration timeout);

  // A snapshot of the job as it is, below the daemon's snapshots.directory;
  // `name` empty: named by its step. Returns when it is durable. Any rank may
  // call it, alone. DeadlineExceeded and Cancelled: it goes on without this
  // rank.
  absl::StatusOr<SavedSnapshot> Save(const std::string& name,
                                     absl::Duration timeout);

  // The slot is free; the job is held for a while.
  absl::Status Detach(absl::Duration timeout);
  // This rank has finished; the job ends when all ranks have.
  absl::Status Close(absl::Duration timeout);

 private:
  enum class WaitFor { kOpen, kCommit, kPublish, kGather };

  Worker(Options options, std::unique_ptr<Attachment> attachment);

  const Attachment& attachment() const { return *attachment_; }
  ControlView& view() { return attachment_->view; }
  absl::Status CheckUsable();
  absl::Status CheckRepeat(std::string_view cursor) const;
  absl::Status CheckTensor(int tensor) const;
  absl::Status CheckFatal();
  absl::Status CheckDaemon(WaitFor reason);
  absl::Status WaitUntil(absl::FunctionRef<bool()> done, absl::Time deadline,
                         WaitFor reason);
  absl::Status DeadlineError(WaitFor reason);
  absl::Status SyncOpen(absl::Time deadline);
  absl::Status Adopt(uint64_t open, const absl::Status& why);
  absl::Status Voided(absl::Time deadline);
  absl::Status StoreGradient(int tensor);
  absl::Status Share();
  void TakeBegin();
  absl::Status Settle(absl::Time deadline);
  absl::Status PushReady();
  absl::Status WaitCommitted(absl::Time deadline);
  absl::Status CheckGathered(std::span<const int> tensors);
  absl::Status WaitHeld(std::span<const int> tensors, absl::Time deadline);
  bool IsRefused(int tensor) const;
  void StoreBack(std::span<const int> tensors);
  absl::Status WaitBuckets(int first, int last, absl::Time deadline);
  absl::StatusOr<StepResult> Conclude(const StepRequest& request,
                                      absl::Time deadline);
  template <typename Fn>
  auto Call(absl::Duration timeout, const Fn& call) {
    return CallAgain(attachment_->connection, timeout, options_.interrupted,
                     call);
  }
  std::string Describe(WaitFor reason) const;
  absl::Status CallError(const absl::Status& status, std::string_view call,
                         absl::Duration timeout) const;
  absl::Status Freeze();
  absl::Status End(absl::Status status, std::string_view how);

  const Options options_;
  const pid_t creator_pid_;
  const base::MonotonicClock clock_;
  std::unique_ptr<Attachment> attachment_;
  std::vector<proto::GroupValues> groups_;
  absl::Status over_;             // not OK: every call returns it
  uint64_t word_ = 0;             // the step to compute, or just committed
  bool is_committed_ = false;     // word_ is committed, the next not yet open
  bool is_result_due_ = false;    // of a committed step, not yet returned
  bool is_input_stored_ = false;  // of word_; then it must not change
  uint64_t published_word_ = 0;   // every bucket reached it once waited for
  uint32_t failure_seen_ = 0;
  int64_t weight_version_ = 0;
  int64_t optimizer_step_ = 0;
  std::string cursor_;
  std::string rank0_cursor_;
  std::string resumed_from_;  // perhaps not known when this rank attached
  std::optional<std::string> former_cursor_;  // given for word_: counts
  std::string open_cursor_;  // these two were handed over with word_
  std::vector<proto::GroupValues> open_groups_;
  std::vector<int32_t> ready_;  // scratch
};

}  // namespace ballast::worker

#endif  // CLIENT_WORKER_WORKER_H_
