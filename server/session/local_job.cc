#include "server/session/local_job.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/failpoint.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/layout/policy.h"
#include "server/session/group_rules.h"
#include "server/session/limits.h"

namespace ballast::session {

std::string_view Name(JobState state) {
  switch (state) {
    case JobState::kGathering:
      return "gathering";
    case JobState::kLoading:
      return "loading";
    case JobState::kRunning:
      return "running";
    case JobState::kWaiting:
      return "waiting";
    case JobState::kClosing:
      return "closing";
    case JobState::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string WorkerName(LocalRank rank) {
  return absl::StrCat("worker-", rank.value());
}

LocalJob::LocalJob(device::Device* device, base::Executor* executor,
                   JobSpec spec, layout::Layout layout, NodeRank node,
                   uint32_t uid, base::Vault* vault)
    : device_(device),
      executor_(executor),
      spec_(std::move(spec)),
      layout_(std::move(layout)),
      node_(node),
      uid_(uid),
      vault_(vault),
      consumed_(layout_.buckets().size()),
      published_(layout_.buckets().size()),
      groups_(spec_.groups),
      alive_(std::make_shared<bool>(true)) {}

LocalJob::~LocalJob() = default;

absl::StatusOr<std::unique_ptr<LocalJob>> LocalJob::Create(
    device::Device* device, base::Executor* executor, JobSpec spec,
    layout::Layout layout, NodeRank node, uint32_t uid, base::Vault* vault) {
  auto job = std::unique_ptr<LocalJob>(new LocalJob(
      device, executor, std::move(spec), std::move(layout), node, uid, vault));
  const std::string& name = job->spec_.name;
  ASSIGN_OR_RETURN(const layout::ExchangePolicy policy,
                   layout::ParsePolicy(job->spec_.exchange));
  const uint64_t bytes = std::max<uint64_t>(job->layout_.weights_bytes(), 1);
  const std::string label = absl::StrCat(name, "-weights");
  if (policy.gathers_weights) {
    job->units_.emplace(job->layout_);
    ASSIGN_OR_RETURN(
        job->weights_,
        device->AllocateSparse(
            bytes, std::max<uint64_t>(1, ResidentBytes(policy, job->layout_)),
            label));
  } else {
    ASSIGN_OR_RETURN(job->weights_, device->AllocateShared(bytes, label));
  }
  const int num_groups = static_cast<int>(job->spec_.groups.size());
  const int num_units = job->units_.has_value() ? job->units_->size() : 0;
  for (int i = 0; i < job->local_world_size(); ++i) {
    ASSIGN_OR_RETURN(auto slot, Slot::Create(device, &job->layout_, num_groups,
                                             name, LocalRank(i), num_units));
    job->slots_.push_back(std::move(slot));
  }
  job->scratch_.reserve(job->layout_.buckets().size());
  job->scratch_units_.reserve(num_units);
  return job;
}

// ---- What can be asked. ----

Rank LocalJob::RankOf(LocalRank rank) const {
  return Rank(layout_.topology().FirstRank(node_).value() + rank.value());
}

int LocalJob::Count(SlotState state) const {
  return static_cast<int>(
      std::count_if(slots_.begin(), slots_.end(),
                    [&](const auto& slot) { return slot->state() == state; }));
}

int LocalJob::num_attached() const {
  return Count(SlotState::kAttached) + Count(SlotState::kReady);
}

bool LocalJob::all_ready() const {
  return Count(SlotState::kReady) == local_world_size();
}

JobState LocalJob::state() const {
  if (is_failed_) return JobState::kFailed;
  if (num_closed() > 0) return JobState::kClosing;
  if (!all_ready()) {
    return has_begun() ? JobState::kWaiting : JobState::kGathering;
  }
  return has_begun() ? JobState::kRunning : JobState::kLoading;
}

// Of a sparse segment: nothing; whoever fills it knows.
uint64_t LocalJob::segment_bytes() const {
  uint64_t bytes = units_.has_value() ? 0 : weights_->size_bytes();
  for (const auto& slot : slots_) bytes += slot->size_bytes();
  return bytes;
}

std::span<const std::byte> LocalJob::gradients(LocalRank rank) const {
  return slots_[rank.value()]->gradients()->bytes();
}

std::span<std::byte> LocalJob::weights() { return weights_->bytes(); }

std::optional<EarlyClose> LocalJob::early_close() const {
  if (!open_.has_value()) return std::nullopt;
  return FirstClose(view(), open_->word(), open_->step);
}

bool LocalJob::is_over() const {
  if (num_attached() > 0 || !open_.has_value()) return false;
  if (num_closed() == local_world_size()) return true;
  if (num_closed() == 0 && !closed_elsewhere_.has_value()) return false;
  return !MayBeClosedByReplacements(view(), open_->word());
}

int LocalJob::buckets_pushed(LocalRank rank) const {
  return open_.has_value() ? slot(rank).CountTaken(open_->word()) : 0;
}

bool LocalJob::owes(LocalRank rank) const {
  const Slot& slot = this->slot(rank);
  if (slot.state() == SlotState::kAttached) return true;
  return slot.state() == SlotState::kReady && open_.has_value() &&
         !slot.IsComplete(open_->word());
}

std::string LocalJob::Missing() const {
  std::vector<std::string> missing;
  for (int i = 0; i < local_world_size(); ++i) {
    const Slot& slot = *slots_[i];
    const int rank = RankOf(LocalRank(i)).value();
    const int64_t pid = slot.identity().pid;
    if (slot.state() == SlotState::kAttached) {
      missing.push_back(
          absl::StrCat("rank ", rank, " (pid ", pid, ") has not begun"));
    } else if (slot.is_free() && pid != 0) {
      missing.push_back(
          absl::StrCat("rank ", rank, " (last pid ", pid, ") is gone"));
    } else if (slot.is_free()) {
      missing.push_back(absl::StrCat("rank ", rank, " has not attached"));
    }
    if (missing.size() == 8 && i + 1 < local_world_size()) {
      missing.push_back("and maybe more");
      break;
    }
  }
  return absl::StrJoin(missing, ", ");
}

std::string LocalJob::Closing() const {
  const auto close = Earlier(early_close(), closed_elsewhere_);
  return close.has_value() ? DescribeClosing(view(), *close) : "";
}

std::string LocalJob::WaitingFor() const {
  std::string missing = Missing();
  if (!missing.empty() || observer_ == nullptr) return missing;
  return observer_->WaitingFor();
}

void LocalJob::Restore(int64_t optimizer_step,
                       std::vector<kernels::HyperParameters> groups,
                       std::vector<std::string> cursors,
                       std::string rank0_cursor, std::string source) {
  source_ = std::move(source);
  optimizer_step_ = optimizer_step;
  rank0_cursor_ = std::move(rank0_cursor);
  groups_ = std::move(groups);
  for (size_t l = 0; l < cursors.size() && l < slots_.size(); ++l) {
    slots_[l]->RestoreCursor(std::move(cursors[l]));
  }
}

void LocalJob::Suspend() { is_taken_over_ = true; }

void LocalJob::TakeOver(Generation generation, Step step, bool is_open,
                        const absl::Status& aborted) {
  open_ = OpenStep{generation, step};
  is_taken_over_ = true;
  for (const auto& slot : slots_) slot->Forget();
  pending_abort_.reset();
  if (!aborted.ok()) {
    last_failure_ = aborted.ToString();
    pending_abort_ = PendingAbort{
        proto::SequenceWord(generation.value() - 1, step.value()), aborted};
  }
  const uint64_t before =
      proto::SequenceWord(generation.value(), step.value() - 1);
  std::fill(consumed_.begin(), consumed_.end(), before);
  std::fill(published_.begin(), published_.end(), before);
  // Some buckets of a step that is carried out may show its weights already.
  if (!is_open) return;
  for (const auto& slot : slots_) {
    if (!slot->is_occupied()) continue;
    for (size_t b = 0; b < published_.size(); ++b) {
      slot->view().StoreConsumed(BucketId(b), before);
      slot->view().StorePublished(BucketId(b), before);
    }
  }
  WakeLater();
}

// ---- The engine's port. ----

void LocalJob::Open(Generation generation, Step step) {
  if (is_failed_) return;
  const bool is_first = !open_.has_value();
  open_ = OpenStep{generation, step};
  if (is_first) {
    const uint64_t before =
        proto::SequenceWord(generation.value(), step.value() - 1);
    std::fill(consumed_.begin(), consumed_.end(), before);
    std::fill(published_.begin(), published_.end(), before);
  }
  for (const auto& slot : slots_) {
    if (!slot->is_occupied()) continue;
    if (is_first) {
      StoreState(*slot);
    } else {
      slot->view().StoreOpen(generation, step);
    }
  }
  StorePendingAbort();
  WakeLater();
  // What an earlier life took is not known before the words are looked at.
  const bool with_gone = std::exchange(is_taken_over_, false);
  if (!with_gone) AnswerBegins();
  // What was pushed before this opened rang its doorbell already.
  for (int i = 0; i < local_world_size(); ++i) {
    const Slot& slot = *slots_[i];
    if (slot.is_occupied() || (with_gone && slot.was_occupied())) {
      ScanSlot(LocalRank(i));
    }
  }
  if (with_gone) AnswerBegins();
}

void LocalJob::AnswerBegins() {
  for (int i = 0; i < local_world_size(); ++i) AnswerBegin(LocalRank(i));
}

void LocalJob::Consumed(BucketId bucket, Generation generation, Step step) {
  const uint64_t word = proto::SequenceWord(generation.value(), step.value());
  consumed_[bucket.value()] = word;
  for (const auto& slot : slots_) {
    if (slot->is_occupied()) slot->view().StoreConsumed(bucket, word);
  }
  WakeLater();
}

void LocalJob::Published(BucketId bucket, Generation generation, Step step) {
  const uint64_t word = proto::SequenceWord(generation.value(), step.value());
  published_[bucket.value()] = word;
  for (const auto& slot : slots_) {
    if (slot->is_occupied()) slot->view().StorePublished(bucket, word);
  }
  WakeLater();
}

void LocalJob::Committed(const ipc::StepReport& report,
                         std::string_view rank0_cursor) {
  const uint64_t word =
      proto::SequenceWord(report.generation.value(), report.step.value());
  optimizer_step_ = report.optimizer_step;
  rank0_cursor_.assign(rank0_cursor);
  for (const auto& slot : slots_) {
    slot->CommitInput(word);
    if (slot->is_occupied()) slot->view().StoreRank0Cursor(word, rank0_cursor);
  }
  // All ranks agree on the groups, so the first slot speaks for all; where an
  // earlier life took the input, Restore has told them.
  const std::vector<proto::GroupValues>& values = slots_[0]->groups();
  for (size_t i = 0; slots_[0]->HasInput(word) && i < groups_.size(); ++i) {
    groups_[i] = FromValues(values[i]);
  }
  Finished(report);
}

void LocalJob::Finished(const ipc::StepReport& report) {
  reports_[report.step.value() & 1] = report;
  for (const auto& slot : slots_) {
    if (slot->is_occupied()) slot->view().StoreCommitted(report);
  }
  WakeLater();
}

void LocalJob::Aborted(Step step, Generation next, const absl::Status& why) {
  if (is_failed_ || !open_.has_value()) return;
  last_failure_ = why.ToString();
  const Generation failed(
      next == open_->generation ? next.value() - 1 : open_->generation.value());
  pending_abort_ =
      PendingAbort{proto::SequenceWord(failed.value(), step.value()), why};
  // A worker looks at `open` when it sees the failure: both go out together.
  if (next == open_->generation) StorePendingAbort();
}

void LocalJob::StorePendingAbort() {
  if (!pending_abort_.has_value()) return;
  for (const auto& slot : slots_) {
    // Told by an earlier life of the daemon, it may be at work again.
    if (!slot->is_occupied() || slot->view().HasFailure(pending_abort_->word)) {
      continue;
    }
    slot->view().StoreFailure(pending_abort_->why.code(), /*is_fatal=*/false,
                              pending_abort_->word,
                              std::string(pending_abort_->why.message()));
  }
  pending_abort_.reset();
  WakeLater();
}

// ---- The workers' side. ----

absl::StatusOr<AttachReply> LocalJob::Attach(LocalRank rank, WorkerLink* link,
                                             bool has_initial_values) {
  Slot& slot = *slots_[rank.value()];
  const int global = RankOf(rank).value();
  if (is_failed_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", base::Quoted(spec_.name), " has failed: ", last_failure_));
  }
  if (slot.state() == SlotState::kClosed) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", global, " has closed job ", base::Quoted(spec_.name), "; ",
        local_world_size() - num_closed(), " of ", local_world_size(),
        " workers have not closed it yet"));
  }
  if (!slot.is_free()) {
    return absl::AlreadyExistsError(
        absl::StrCat("rank ", global, " of job ", base::Quoted(spec_.name),
                     " is attached already, by pid ", slot.identity().pid));
  }
  const bool is_stored = spec_.stored.has_value();
  // If other nodes may hold some, they are asked first.
  const bool needs_initial = !has_begun() && global == 0 && !is_stored &&
                             (has_initial_values || !spec_.asks_nodes);
  if (needs_initial && !has_initial_values) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no weights of job ", base::Quoted(spec_.name),
        " are held or stored here: rank 0 must give the tensors' initial "
        "values"));
  }
  has_initial_values_ |= needs_initial;
  if (is_taken_over_ && slot.was_occupied()) KeepWhatWasLeft(slot);
  RETURN_IF_ERROR(slot.Occupy(link, open_.has_value() ? open_->word() : 0));
  BALLAST_FAILPOINT("session.slot_taken");
  if (has_begun()) StoreState(slot);
  absl::Status status = SendSegments(rank, needs_initial);
  BALLAST_FAILPOINT("session.segments_sent");
  if (status.ok() && vault_ != nullptr) {
    status = link->Keep(vault_, WorkerName(rank));
  }
  BALLAST_FAILPOINT("session.attached");
  if (!status.ok()) {
    slot.Vacate(/*was_lost=*/false);
    return status;
  }
  return AttachReply{link->identity().incarnation, &layout_,
                     needs_initial ? weights_->size_bytes() : 0,
                     has_begun() || is_stored, units()};
}

// Of the rank's last worker, whose control block makes room for another one.
// What is of another step than the one that is known here is given again.
void LocalJob::KeepWhatWasLeft(Slot& slot) {
  std::vector<BucketId> pushed;
  slot.TakePushed(open_->word(), &pushed);
  slot.TakeInput(open_->word()).IgnoreError();
}

absl::Status LocalJob::SendSegments(LocalRank rank, bool needs_initial) {
  Slot& slot = *slots_[rank.value()];
  WorkerLink* const link = slot.link();
  RETURN_IF_ERROR(
      link->SendSegment(proto::SegmentKind::kControlBlock, *slot.control()));
  RETURN_IF_ERROR(
      link->SendSegment(proto::SegmentKind::kGradients, *slot.gradients()));
  RETURN_IF_ERROR(link->SendSegment(proto::SegmentKind::kWeights, *weights_));
  if (!needs_initial) return absl::OkStatus();
  const std::string label = absl::StrCat(spec_.name, "-initial");
  ASSIGN_OR_RETURN(auto initial,
                   device_->AllocateShared(weights_->size_bytes(), label));
  // Only until Begin, and a job that has not begun is not kept.
  if (vault_ != nullptr) vault_->Remove(label);
  RETURN_IF_ERROR(link->SendSegment(proto::SegmentKind::kInitial, *initial));
  slot.set_initial(std::move(initial));
  return absl::OkStatus();
}

void LocalJob::Adopt(LocalRank rank, WorkerLink* link, bool is_closed) {
  Slot& slot = *slots_[rank.value()];
  if (link != nullptr) slot.Adopt(link);
  if (!is_closed) return;
  slot.Close();
  slot.view().StoreClosed();
}

void LocalJob::StoreState(Slot& slot) {
  ipc::ControlBlockView& view = slot.view();
  for (size_t b = 0; b < published_.size(); ++b) {
    view.StoreConsumed(BucketId(b), consumed_[b]);
    view.StorePublished(BucketId(b), published_[b]);
  }
  // The older record first: `committed` must end at the newer one.
  const int older = (open_->step.value() - 2) & 1;
  for (const int i : {older, 1 - older}) {
    if (reports_[i].has_value()) view.StoreCommitted(*reports_[i]);
  }
  view.StoreOpen(open_->generation, open_->step);
}

void LocalJob::Begin(LocalRank rank, BeginDone done) {
  Slot& slot = *slots_[rank.value()];
  const bool is_first = slot.state() == SlotState::kAttached;
  if ((!is_first && slot.state() != SlotState::kReady) || slot.begin_done) {
    std::move(done)(absl::FailedPreconditionError(absl::StrCat(
        "rank ", RankOf(rank).value(), " is ", std::string(Name(slot.state())),
        slot.begin_done ? " and waits in another Begin" : "; attach first")));
    return;
  }
  if (auto initial = slot.TakeInitial(); initial != nullptr && !has_begun()) {
    if (units_.has_value()) {
      initial_ = std::move(initial);  // its parts go to their owners
    } else {
      std::memcpy(weights_->bytes().data(), initial->bytes().data(),
                  weights_->size_bytes());
    }
  }
  BALLAST_FAILPOINT("session.begin");
  slot.MakeReady();
  slot.begin_done = std::move(done);
  AnswerBegin(rank);
  if (is_first && all_ready() && !is_failed_) observer_->OnAllReady();
}

void LocalJob::AnswerBegin(LocalRank rank) {
  Slot& slot = *slots_[rank.value()];
  if (!slot.begin_done || !open_.has_value()) return;
  if (pending_abort_.has_value() || is_taken_over_) {
    return;  // the next Open answers
  }
  BeginReply reply;
  reply.generation = open_->generation;
  reply.open_step = open_->step;
  reply.weight_version = WeightVersion(open_->step.value() - 1);
  reply.optimizer_step = optimizer_step_;
  reply.cursor = slot.cursor();
  reply.groups = groups_;
  for (size_t b = 0; b < published_.size(); ++b) {
    if (slot.IsTaken(BucketId(b), open_->word())) {
      reply.pushed_buckets.push_back(static_cast<int32_t>(b));
    }
  }
  reply.rank0_cursor = rank0_cursor_;
  if (slot.HasInput(open_->word())) reply.step_cursor = slot.open_cursor();
  reply.source = source_;
  std::exchange(slot.begin_done, nullptr)(std::move(reply));
}

bool LocalJob::CancelBegin(LocalRank rank, const absl::Status& status) {
  Slot& slot = *slots_[rank.value()];
  if (!slot.begin_done) return false;
  std::exchange(slot.begin_done, nullptr)(status);
  return true;
}

void LocalJob::OnDoorbell(LocalRank rank) {
  if (slots_[rank.value()]->is_occupied()) ScanSlot(rank);
}

void LocalJob::ScanSlot(LocalRank rank) {
  if (is_failed_ || !open_.has_value() || pending_abort_.has_value() ||
      is_taken_over_) {
    return;  // the next Open looks
  }
  Slot& slot = *slots_[rank.value()];
  // `pushed` words first: a worker stores its step input before the last of
  // them, so whoever has seen that one also finds the input.
  const uint64_t word = open_->word();
  std::vector<BucketId> pushed = std::exchange(scratch_, {});
  pushed.clear();
  slot.TakePushed(word, &pushed);
  BALLAST_FAILPOINT("session.pushed");
  TakeInput(rank);
  TakeWanted(rank);
  for (const BucketId bucket : pushed) {
    // An observer may have ended the step, or the job, meanwhile.
    if (is_failed_ || open_->word() != word) break;
    observer_->OnPushed(rank, bucket);
  }
  scratch_ = std::move(pushed);
  TellIfHopeless(rank);
}

void LocalJob::TakeWanted(LocalRank rank) {
  if (!units_.has_value()) return;
  Slot& slot = *slots_[rank.value()];
  // One that is gone wants nothing, whatever its control block says.
  if (!slot.is_occupied() || slot.state() == SlotState::kClosed) return;
  std::vector<int> changed = std::exchange(scratch_units_, {});
  changed.clear();
  slot.TakeWanted(&changed);
  // What is given back makes room for what is wanted, whatever their places.
  for (const bool is_wanted : {false, true}) {
    for (const int unit : changed) {
      if (slot.wanted(unit) % 2 == (is_wanted ? 1 : 0)) {
        observer_->OnWanted(rank, unit, slot.wanted(unit));
      }
    }
  }
  scratch_units_ = std::move(changed);
}

// What a worker that leaves held goes back.
void LocalJob::DropWanted(LocalRank rank) {
  if (!units_.has_value() || is_failed_ || observer_ == nullptr) return;
  Slot& slot = *slots_[rank.value()];
  std::vector<int> dropped;
  slot.DropWanted(&dropped);
  for (const int unit : dropped) {
    observer_->OnWanted(rank, unit, slot.wanted(unit));
  }
}

void LocalJob::RestoreHeld(
    absl::FunctionRef<bool(LocalRank, int, uint64_t, WeightVersion)> adopt) {
  for (int i = 0; units_.has_value() && i < local_world_size(); ++i) {
    Slot& slot = *slots_[i];
    // Nor one that has closed the job: see TakeWanted.
    if (!slot.is_occupied() || slot.state() == SlotState::kClosed) continue;
    for (int u = 0; u < units_->size(); ++u) {
      const uint64_t word = slot.view().ReadHeld(u);
      const uint64_t request = slot.view().ReadWanted(u);
      const proto::HeldState state = BALLAST_SABOTAGED("session.wanted_is_held")
                                         ? proto::HeldState::kHeld
                                         : proto::StateOfHeld(word);
      const bool is_wanted = request % 2 == 1;
      if (state == proto::HeldState::kRefused) {
        // It was told, and gives it back before it asks again.
        if (is_wanted && proto::IsHeldFor(word, request)) {
          slot.RestoreWanted(u, request);
        }
      } else if (state == proto::HeldState::kHeld) {
        const WeightVersion version(proto::VersionOfHeld(word));
        if (is_wanted && adopt(LocalRank(i), u, request, version)) {
          slot.RestoreWanted(u, request);
        } else {
          StoreHeld(LocalRank(i), u, request, proto::HeldState::kNone, {});
        }
      }
    }
  }
}

void LocalJob::StoreHeld(LocalRank rank, int unit, uint64_t request,
                         proto::HeldState state, WeightVersion version) {
  Slot& slot = *slots_[rank.value()];
  if (!slot.is_occupied()) return;
  slot.view().StoreHeld(unit, proto::HeldWord(request, state, version.value()));
  WakeLater();
}

void LocalJob::Refuse(LocalRank rank, int unit, uint64_t request,
                      const absl::Status& why) {
  Slot& slot = *slots_[rank.value()];
  if (!slot.is_occupied()) return;
  slot.view().StoreRefusal(why.code(), std::string(why.message()));
  StoreHeld(rank, unit, request, proto::HeldState::kRefused, {});
}

void LocalJob::TellIfHopeless(LocalRank rank) {
  Slot& slot = *slots_[rank.value()];
  if (is_failed_ || !open_.has_value() || !slot.is_occupied() ||
      slot.state() == SlotState::kClosed || !slot.HasInput(open_->word())) {
    return;
  }
  const auto close = Earlier(early_close(), closed_elsewhere_);
  if (!close.has_value() || open_->step < close->step) return;
  const absl::Status why = NeverCommitted(*close, open_->step);
  slot.view().StoreFailure(why.code(), /*is_fatal=*/true, open_->word(),
                           std::string(why.message()));
  WakeLater();
}

void LocalJob::TakeInput(LocalRank rank) {
  Slot& slot = *slots_[rank.value()];
  const absl::StatusOr<bool> is_new = slot.TakeInput(open_->word());
  absl::Status status = is_new.status();
  if (status.ok()) {
    if (!*is_new) return;
    status =
        CheckGroups(spec_.optimizer, AnyMomentum(spec_.groups), slot.groups());
    if (status.ok() && units_.has_value() && slot.groups()[0].load != 0) {
      status = absl::FailedPreconditionError(
          "load, where weights are not resident (secondary_partition=none): "
          "give them as initial values");
    }
  }
  if (status.ok()) {
    observer_->OnStepInput(rank, slot.groups(), slot.open_cursor());
    return;
  }
  observer_->OnStepInputRefused(
      rank, absl::Status(status.code(),
                         absl::StrCat("rank ", RankOf(rank).value(), ", step ",
                                      open_->step.value(), ": ",
                                      std::string(status.message()))));
}

void LocalJob::OnLinkGone(LocalRank rank, const absl::Status& why) {
  Slot& slot = *slots_[rank.value()];
  CancelBegin(rank, why.ok() ? absl::CancelledError("the worker left") : why);
  const bool was_closed = slot.state() == SlotState::kClosed;
  DropWanted(rank);
  slot.Vacate(/*was_lost=*/!absl::IsCancelled(why));
  BALLAST_FAILPOINT("session.vacated");
  if (vault_ != nullptr) vault_->Remove(WorkerName(rank));
  if (!was_closed && !is_failed_ && observer_ != nullptr) {
    observer_->OnWorkerLost(rank, why);
  }
}

void LocalJob::Close(LocalRank rank) {
  Slot& slot = *slots_[rank.value()];
  if (slot.state() == SlotState::kClosed) return;
  // Its last doorbell may come after this call.
  OnDoorbell(rank);
  CancelBegin(rank, absl::CancelledError("the worker closed the job"));
  DropWanted(rank);
  slot.Close();
  BALLAST_FAILPOINT("session.closed");
  observer_->OnWorkerClosed(rank);
  BALLAST_FAILPOINT("session.close_recorded");
  slot.view().StoreClosed();
  for (int i = 0; i < local_world_size(); ++i) TellIfHopeless(LocalRank(i));
  if (num_closed() == local_world_size()) observer_->OnAllClosed();
}

void LocalJob::OnClosedElsewhere(const EarlyClose& close) {
  // It is told again and again: only news counts.
  const auto earliest = Earlier(closed_elsewhere_, close);
  if (earliest == closed_elsewhere_) return;
  closed_elsewhere_ = earliest;
  for (int i = 0; i < local_world_size(); ++i) TellIfHopeless(LocalRank(i));
}

void LocalJob::Fail(const absl::Status& why) {
  if (is_failed_) return;
  is_failed_ = true;
  last_failure_ = why.ToString();
  const uint64_t word = open_.has_value() ? open_->word() : 0;
  // Where ranks have closed the job and it ends for that, what it means for
  // the open step says more.
  const auto close = Earlier(early_close(), closed_elsewhere_);
  const bool is_closed = absl::IsCancelled(why) && close.has_value() &&
                         open_.has_value() && open_->step >= close->step;
  const absl::Status told =
      is_closed ? NeverCommitted(*close, open_->step) : why;
  for (const auto& slot : slots_) {
    if (!slot->is_occupied()) continue;
    slot->view().StoreFailure(told.code(), /*is_fatal=*/true, word,
                              std::string(told.message()));
  }
  WakeNow();
  for (int i = 0; i < local_world_size(); ++i) {
    CancelBegin(LocalRank(i), why);
  }
}

void LocalJob::WakeLater() {
  if (is_wake_posted_) return;
  is_wake_posted_ = true;
  executor_->Post([this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.lock() != nullptr) WakeNow();
  });
}

void LocalJob::WakeNow() {
  is_wake_posted_ = false;
  for (const auto& slot : slots_) {
    if (!slot->is_occupied()) continue;
    slot->view().Wake();
    slot->link()->OnWake();
  }
}

}  // namespace ballast::session
