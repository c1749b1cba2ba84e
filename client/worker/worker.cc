#include "client/worker/worker.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/group_values.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"

namespace ballast::worker {
namespace {

constexpr char kResumePayload[] = "ballast.resume_step";
constexpr absl::Duration kSlice = absl::Milliseconds(50);
constexpr absl::Duration kStatsLimit = absl::Seconds(2);
constexpr absl::Duration kReasonLimit = absl::Milliseconds(200);

absl::Status WithResumeStep(absl::Status status, int64_t step) {
  status.SetPayload(kResumePayload, absl::Cord(absl::StrCat(step)));
  return status;
}

proto::GroupValues ToValues(const v1::ParamGroup& group) {
  proto::GroupValues values{};
  values.lr = group.lr();
  values.beta1 = group.beta1();
  values.beta2 = group.beta2();
  values.eps = group.eps();
  values.weight_decay = group.weight_decay();
  values.momentum = group.momentum();
  values.dampening = group.dampening();
  values.nesterov = group.nesterov() ? 1 : 0;
  values.lr_decay = group.lr_decay();
  values.initial_accumulator_value = group.initial_accumulator_value();
  return values;
}

}  // namespace

std::optional<int64_t> ResumeStep(const absl::Status& status) {
  const auto payload = status.GetPayload(kResumePayload);
  int64_t step = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &step)) {
    return std::nullopt;
  }
  return step;
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Open(Options options) {
  ASSIGN_OR_RETURN(Attachment attachment, Attach(options));
  options.initial_values.clear();  // no longer needed, not ours
  const absl::Duration timeout = options.open_timeout;
  std::unique_ptr<Worker> worker(new Worker(
      std::move(options), std::make_unique<Attachment>(std::move(attachment))));
  RETURN_IF_ERROR(worker->Settle(worker->clock_.Now() + timeout));
  return worker;
}

Worker::Worker(Options options, std::unique_ptr<Attachment> attachment)
    : options_(std::move(options)),
      creator_pid_(getpid()),
      attachment_(std::move(attachment)) {
  failure_seen_ = attachment_->failure_seen;
  ready_.reserve(num_buckets());
  TakeBegin();
}

void Worker::TakeBegin() {
  const v1::BeginReply& begin = attachment_->begin;
  groups_.clear();
  for (const v1::ParamGroup& group : begin.groups()) {
    groups_.push_back(ToValues(group));
  }
  word_ = proto::SequenceWord(begin.generation(), begin.open_step());
  weight_version_ = begin.weight_version();
  optimizer_step_ = begin.optimizer_step();
  cursor_ = begin.cursor();
  rank0_cursor_ = begin.rank0_cursor();
  resumed_from_ = begin.source();
  former_cursor_.reset();
  if (begin.has_step_input()) former_cursor_ = begin.step_cursor();
}

// Until what the daemon said at Begin holds still. A step that the former
// worker gave may have ended meanwhile, and the copy of the weights be of
// both; the weights of the step before may still be on their way here.
absl::Status Worker::Settle(absl::Time deadline) {
  const auto has_ended = [&] {
    return view().committed() == word_ || view().open() > word_;
  };
  while (has_ended()) {
    RETURN_IF_ERROR(WaitUntil([&] { return view().open() > word_; }, deadline,
                              WaitFor::kOpen));
    if (const auto failure = view().FailureAfter(failure_seen_)) {
      failure_seen_ = failure->count;
    }
    const absl::Duration left = deadline - clock_.Now();
    const absl::Status begun = Begin(options_, left, *attachment_);
    if (absl::IsUnavailable(begun)) return CallError(begun, "begin", left);
    RETURN_IF_ERROR(begun);
    TakeBegin();
  }
  int bucket = 0;
  return WaitUntil(
      [&] {
        while (bucket < num_buckets() &&
               proto::StepOf(view().published(bucket)) >= weight_version_) {
          ++bucket;
        }
        return bucket == num_buckets();
      },
      deadline, WaitFor::kPublish);
}

Worker::~Worker() {
  // In a forked child all of this is the parent's: threads that do not exist
  // here, a channel in an unknown state, a lease that must not end.
  if (getpid() != creator_pid_) (void)attachment_.release();
}

bool Worker::is_step_given() const {
  return former_cursor_.has_value() && !is_committed_ &&
         attachment_->begin.pushed_buckets_size() == num_buckets();
}

int64_t Worker::open_step() const {
  return proto::StepOf(word_) + (is_committed_ && !is_result_due_ ? 1 : 0);
}

std::span<const std::byte> Worker::params(int tensor) const {
  if (!CheckTensor(tensor).ok()) return {};
  const TensorView& place = attachment_->tensors[tensor];
  if (place.size_bytes == 0) return {};
  auto& weights = const_cast<base::Segment&>(attachment_->weights);
  return weights.bytes().subspan(place.weight_offset, place.size_bytes);
}

absl::StatusOr<WeightsPlace> Worker::FindWeights(int tensor) {
  RETURN_IF_ERROR(CheckUsable());
  RETURN_IF_ERROR(CheckTensor(tensor));
  const base::Segment& weights = attachment_->weights;
  return WeightsPlace{.fd = weights.fd(),
                      .segment_bytes = weights.size_bytes(),
                      .offset = attachment_->tensors[tensor].weight_offset};
}

std::span<std::byte> Worker::grads(int tensor) {
  if (!CheckTensor(tensor).ok()) return {};
  const TensorView& place = attachment_->tensors[tensor];
  if (place.size_bytes == 0 || place.is_frozen) return {};
  return attachment_->gradients.bytes().subspan(place.gradient_offset,
                                                place.size_bytes);
}

absl::Status Worker::CheckUsable() {
  if (const pid_t pid = getpid(); pid != creator_pid_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this session belongs to process ", creator_pid_,
        " and cannot be used in its forked child ", pid,
        ": use it in the parent only, or start the child with the method "
        "\"spawn\" and open a session there"));
  }
  RETURN_IF_ERROR(over_);
  return CheckFatal();
}

// The step that was handed over is the one that counts: other values now
// would be silently ignored.
absl::Status Worker::CheckRepeat(std::string_view cursor) const {
  std::string change;
  if (cursor != open_cursor_) change = "the cursor";
  for (size_t i = 0; i < groups_.size(); ++i) {
    const proto::GroupField* const field =
        proto::FirstDifference(open_groups_[i], groups_[i]);
    if (field == nullptr) continue;
    change = absl::StrCat(field->name, " of group ", i, " (",
                          open_groups_[i].*field->value, " then, ",
                          groups_[i].*field->value, " now)");
  }
  if (change.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "step ", proto::StepOf(word_),
      " was already handed over with other values: ", change,
      " differs; repeat it with the same, or detach and open a session anew"));
}

absl::Status Worker::CheckTensor(int tensor) const {
  if (tensor >= 0 && tensor < num_tensors()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", tensor, " is not in [0, ", num_tensors(), ")"));
}

absl::Status Worker::CheckFatal() {
  const auto failure = view().FailureAfter(failure_seen_);
  if (!failure || !failure->is_fatal) return absl::OkStatus();
  over_ = absl::Status(failure->code, failure->text);
  return over_;
}

std::string Worker::Describe(WaitFor reason) const {
  switch (reason) {
    case WaitFor::kOpen:
      return absl::StrCat("before step ", open_step(), " was open");
    case WaitFor::kCommit:
      return absl::StrCat("during step ", open_step());
    case WaitFor::kPublish:
      return absl::StrCat("while the weights of step ",
                          published_word_ == 0 ? weight_version_
                                               : proto::StepOf(published_word_),
                          " were on the way");
    case WaitFor::kGather:
      return absl::StrCat("while weights of step ", weight_version_,
                          " were gathered");
  }
  return "";
}

absl::Status Worker::CheckDaemon(WaitFor reason) {
  RETURN_IF_ERROR(CheckFatal());
  if (attachment_->connection.handle->IsOpen()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckFatal());  // its last word, stored before it closed
  over_ = absl::UnavailableError(absl::StrCat(
      "the daemon at ", options_.address, " went away ", Describe(reason),
      "; this session is over: see the daemon's log, start it again and open "
      "the session anew"));
  return over_;
}

// gRPC's own words name neither the daemon nor the call.
absl::Status Worker::CallError(const absl::Status& status,
                               std::string_view call,
                               absl::Duration timeout) const {
  const std::string where =
      absl::StrCat("the daemon at ", options_.address, " ");
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(absl::StrCat(
        where, "did not answer ", std::string(call), " within ",
        absl::FormatDuration(timeout), ": is it stopped or overloaded?"));
  }
  if (absl::IsUnavailable(status)) {
    return absl::UnavailableError(
        absl::StrCat(where, "went away (", std::string(call), ": ",
                     status.message(), "): see its log"));
  }
  return status;
}

absl::Status Worker::DeadlineError(WaitFor reason) {
  auto stats =
      Call(kStatsLimit, [](ControlChannel& channel, absl::Duration left) {
        return channel.GetStats(left);
      });
  std::string waiting = stats.ok() ? WaitingFor(stats->json())
                                   : absl::StrCat("it does not answer: ",
                                                  stats.status().message());
  if (waiting.empty()) waiting = "it does not say for whom it waits";
  return absl::DeadlineExceededError(
      absl::StrCat("time-out ", Describe(reason), "; the daemon at ",
                   options_.address, ": ", waiting));
}

absl::Status Worker::WaitUntil(absl::FunctionRef<bool()> done,
                               absl::Time deadline, WaitFor reason) {
  absl::Time next_check = clock_.Now() + kSlice;
  for (;;) {
    const uint32_t seen = view().wake();
    if (done()) return absl::OkStatus();
    const absl::Time now = clock_.Now();
    if (now >= next_check) {
      const absl::Status alive = CheckDaemon(reason);
      if (!alive.ok()) return done() ? absl::OkStatus() : alive;
      if (options_.interrupted && options_.interrupted()) {
        return absl::CancelledError(
            absl::StrCat("interrupted ", Describe(reason)));
      }
      if (now >= deadline) return DeadlineError(reason);
      next_check = now + kSlice;
    }
    view().Sleep(seen, next_check - now);
  }
}

// Brings word_ to the step that the daemon has open.
absl::Status Worker::SyncOpen(absl::Time deadline) {
  if (is_committed_) {
    RETURN_IF_ERROR(WaitUntil([&] { return view().open() > word_; }, deadline,
                              WaitFor::kOpen));
    const uint64_t open = view().open();
    if (proto::StepOf(open) == open_step()) {
      return Adopt(open, absl::OkStatus());
    }
    return Voided(deadline);
  }
  const uint64_t open = view().open();
  // Committed already: all was in when the rank's former worker died.
  if (open <= word_ || view().committed() == word_) return absl::OkStatus();
  const bool is_same_step = proto::StepOf(open) == proto::StepOf(word_);
  // What was computed beside the shared memory would go with Share().
  const bool is_untouched = !attachment_->tracker.any_pushed() &&
                            !is_input_stored_ &&
                            !attachment_->shadows_gradients;
  if (is_same_step && is_untouched) return Adopt(open, absl::OkStatus());
  return Voided(deadline);
}

// From now on `open` is the step to compute, and nothing of it is pushed.
absl::Status Worker::Adopt(uint64_t open, const absl::Status& why) {
  word_ = open;
  is_committed_ = false;
  is_input_stored_ = false;
  former_cursor_.reset();
  attachment_->tracker.Reset();
  RETURN_IF_ERROR(Share());
  if (why.ok()) return why;
  return WithResumeStep(why, proto::StepOf(open));
}

// The step of word_ will not commit: open has moved to a new generation.
absl::Status Worker::Voided(absl::Time deadline) {
  const absl::Time limit = std::min(deadline, clock_.Now() + kReasonLimit);
  std::optional<Failure> failure;
  const absl::Status found = WaitUntil(
      [&] {
        failure = view().FailureAfter(failure_seen_);
        return failure.has_value() || clock_.Now() >= limit;
      },
      absl::InfiniteFuture(), WaitFor::kCommit);
  RETURN_IF_ERROR(found);
  const uint64_t open = view().open();
  absl::Status why = absl::AbortedError(absl::StrCat(
      "step ", proto::StepOf(word_),
      " was aborted: the job went on from "
      "generation ",
      proto::GenerationOf(word_), " to ", proto::GenerationOf(open)));
  if (failure) {
    failure_seen_ = failure->count;
    why = absl::Status(failure->code, failure->text);
    if (failure->is_fatal) return over_ = why;
  }
  return Adopt(open, why);
}

// A tensor that is pushed again holds the bits that it held.
absl::Status Worker::StoreGradient(int tensor) {
  const TensorView& place = attachment_->tensors[tensor];
  if (!attachment_->shadows_gradients || place.is_frozen) {
    return absl::OkStatus();
  }
  return attachment_->gradients.Store(place.gradient_offset, place.size_bytes);
}

absl::Status Worker::Share() {
  const absl::Status shared = ShareAll(*attachment_);
  // What is computed from here on would reach nobody.
  return shared.ok() ? shared : End(shared, "detached");
}

absl::Status Worker::PushReady() {
  if (ready_.empty()) return absl::OkStatus();
  for (const int32_t bucket : ready_) view().StorePushed(bucket, word_);
  ready_.clear();
  // A daemon that is gone is noticed, with its last word, by whoever waits.
  attachment_->connection.handle->RingDoorbell().IgnoreError();
  return absl::OkStatus();
}

absl::Status Worker::Push(int tensor) {
  RETURN_IF_ERROR(CheckUsable());
  RETURN_IF_ERROR(CheckTensor(tensor));
  if (attachment_->tensors[tensor].is_frozen) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", base::Quoted(options_.job.tensors(tensor).name()),
        " is frozen: it has no gradient to push"));
  }
  if (is_result_due_) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", open_step(),
                     " is committed and its result was not fetched: "
                     "call Step again before the next push"));
  }
  RETURN_IF_ERROR(SyncOpen(clock_.Now() + options_.open_timeout));
  if (view().committed() == word_) return absl::OkStatus();
  RETURN_IF_ERROR(StoreGradient(tensor));
  attachment_->tracker.Push(tensor, ready_);
  return PushReady();
}

absl::StatusOr<StepResult> Worker::Step(const StepRequest& request) {
  RETURN_IF_ERROR(CheckUsable());
  if (request.cursor.size() > proto::kMaxCursorBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("cursor has ", request.cursor.size(), " bytes, at most ",
                     proto::kMaxCursorBytes,
                     " are kept: store what is large elsewhere and "
                     "its name here"));
  }
  for (proto::GroupValues& group : groups_) {
    group.load = static_cast<double>(request.load);
  }
  const absl::Time deadline = clock_.Now() + request.timeout;
  if (!is_result_due_) RETURN_IF_ERROR(SyncOpen(deadline));
  if (is_input_stored_ || is_result_due_) {
    RETURN_IF_ERROR(CheckRepeat(request.cursor));
  } else {
    open_cursor_.assign(request.cursor);
    open_groups_ = groups_;
  }
  if (is_result_due_) return Conclude(request, deadline);
  if (view().committed() != word_) {
    if (!is_input_stored_) {
      for (int tensor = 0; tensor < std::ssize(attachment_->tensors);
           ++tensor) {
        RETURN_IF_ERROR(StoreGradient(tensor));
      }
      view().StoreInput(word_, groups_, request.cursor);
      is_input_stored_ = true;
    }
    attachment_->tracker.PushRest(ready_);
    RETURN_IF_ERROR(PushReady());
    attachment_->connection.handle->RingDoorbell().IgnoreError();
    RETURN_IF_ERROR(WaitCommitted(deadline));
  }
  cursor_ = former_cursor_.has_value() ? *former_cursor_ : open_cursor_;
  former_cursor_.reset();
  if (!view().ReadRank0Cursor(word_, &rank0_cursor_)) {
    return over_ = absl::DataLossError(
               absl::StrCat("the daemon committed step ", proto::StepOf(word_),
                            " without rank 0's cursor"));
  }
  is_committed_ = true;
  is_result_due_ = true;
  is_input_stored_ = false;
  published_word_ = word_;
  attachment_->tracker.Reset();
  RETURN_IF_ERROR(Share());
  return Conclude(request, deadline);
}

absl::Status Worker::WaitCommitted(absl::Time deadline) {
  RETURN_IF_ERROR(WaitUntil(
      [&] { return view().committed() == word_ || view().open() > word_; },
      deadline, WaitFor::kCommit));
  // The commit is stored before the next step is opened.
  if (view().committed() == word_) return absl::OkStatus();
  return Voided(deadline);
}

absl::StatusOr<StepResult> Worker::Conclude(const StepRequest& request,
                                            absl::Time deadline) {
  if (request.wait_published) {
    RETURN_IF_ERROR(WaitBuckets(0, num_buckets() - 1, deadline));
  }
  std::optional<StepResult> result;
  RETURN_IF_ERROR(
      WaitUntil([&] { return (result = view().Record(word_)).has_value(); },
                deadline, WaitFor::kPublish));
  weight_version_ = result->weight_version;
  if (request.wait_published && gathers_weights()) {
    std::vector<int> wanted;
    for (int tensor = 0; tensor < num_tensors(); ++tensor) {
      if (attachment_->holdings.is_wanted(tensor) && !IsRefused(tensor)) {
        wanted.push_back(tensor);
      }
    }
    RETURN_IF_ERROR(WaitHeld(wanted, deadline));
  }
  is_result_due_ = false;
  optimizer_step_ = result->optimizer_step;
  return *std::move(result);
}

absl::Status Worker::CheckGathered(std::span<const int> tensors) {
  RETURN_IF_ERROR(CheckUsable());
  if (!gathers_weights() && num_tensors() > 0) {
    return absl::FailedPreconditionError(
        "all weights of this job are resident: gather and release are for an "
        "exchange policy with secondary_partition=none");
  }
  for (const int tensor : tensors) RETURN_IF_ERROR(CheckTensor(tensor));
  return absl::OkStatus();
}

absl::Status Worker::Gather(std::span<const int> tensors, bool wait,
                            absl::Duration timeout) {
  RETURN_IF_ERROR(CheckGathered(tensors));
  std::vector<int> added;
  for (const int tensor : tensors) {
    if (attachment_->holdings.is_wanted(tensor)) continue;
    added.push_back(tensor);
    attachment_->holdings.Want(tensor, [&](int unit, uint64_t request) {
      view().StoreWanted(unit, request);
    });
  }
  if (!added.empty()) {
    attachment_->connection.handle->RingDoorbell().IgnoreError();
  }
  if (!wait) return absl::OkStatus();
  const absl::Status held = WaitHeld(tensors, clock_.Now() + timeout);
  if (absl::IsResourceExhausted(held)) StoreBack(added);
  return held;
}

absl::Status Worker::GiveBack(std::span<const int> tensors) {
  RETURN_IF_ERROR(CheckGathered(tensors));
  StoreBack(tensors);
  return absl::OkStatus();
}

void Worker::StoreBack(std::span<const int> tensors) {
  bool is_news = false;
  for (const int tensor : tensors) {
    attachment_->holdings.GiveBack(tensor, [&](int unit, uint64_t request) {
      view().StoreWanted(unit, request);
      is_news = true;
    });
  }
  if (is_news) attachment_->connection.handle->RingDoorbell().IgnoreError();
}

bool Worker::IsHeld(int tensor) const {
  if (!CheckTensor(tensor).ok()) return false;
  const Holdings& holdings = attachment_->holdings;
  if (!holdings.are_gathered()) return true;
  const ControlView& view = attachment_->view;
  // A step that the former worker gave commits while it is computed again:
  // from then on there are its weights only.
  const bool is_newer = is_step_given() && view.committed() == word_;
  return over_.ok() &&
         holdings.IsHeld(tensor,
                         is_newer ? proto::StepOf(word_) : weight_version_,
                         [&](int unit) { return view.held(unit); });
}

bool Worker::IsRefused(int tensor) const {
  return attachment_->holdings.IsRefused(
      tensor, [&](int unit) { return attachment_->view.held(unit); });
}

absl::Status Worker::WaitHeld(std::span<const int> tensors,
                              absl::Time deadline) {
  size_t next = 0;
  bool is_refused = false;
  RETURN_IF_ERROR(WaitUntil(
      [&] {
        while (next < tensors.size() && IsHeld(tensors[next])) ++next;
        for (size_t i = next; i < tensors.size(); ++i) {
          is_refused = is_refused || IsRefused(tensors[i]);
        }
        if (is_refused) return true;
        return next == tensors.size();
      },
      deadline, WaitFor::kGather));
  return is_refused ? view().Refusal() : absl::OkStatus();
}

absl::Status Worker::WaitBuckets(int first, int last, absl::Time deadline) {
  int bucket = first;
  return WaitUntil(
      [&] {
        while (bucket <= last && view().published(bucket) >= published_word_) {
          ++bucket;
        }
        return bucket > last;
      },
      deadline, WaitFor::kPublish);
}

absl::Status Worker::Wait(int tensor, absl::Duration timeout) {
  RETURN_IF_ERROR(CheckUsable());
  RETURN_IF_ERROR(CheckTensor(tensor));
  const absl::Time deadline = clock_.Now() + timeout;
  const BucketRange range = attachment_->tracker.range(tensor);
  if (range.first >= 0) {
    RETURN_IF_ERROR(WaitBuckets(range.first, range.last, deadline));
  }
  if (!gathers_weights() || !attachment_->holdings.is_wanted(tensor)) {
    return absl::OkStatus();
  }
  return WaitHeld(std::span(&tensor, 1), deadline);
}

absl::Status Worker::WaitAll(absl::Duration timeout) {
  RETURN_IF_ERROR(CheckUsable());
  return WaitBuckets(0, num_buckets() - 1, clock_.Now() + timeout);
}

absl::StatusOr<std::string> Worker::Stats(absl::Duration timeout) {
  RETURN_IF_ERROR(CheckUsable());
  auto reply = Call(timeout, [](ControlChannel& channel, absl::Duration left) {
    return channel.GetStats(left);
  });
  if (!reply.ok()) return CallError(reply.status(), "stats", timeout);
  return std::move(*reply->mutable_json());
}

absl::StatusOr<SavedSnapshot> Worker::Save(const std::string& name,
                                           absl::Duration timeout) {
  RETURN_IF_ERROR(CheckUsable());
  v1::SaveRequest request;
  request.set_name(name);
  auto reply = Call(timeout, [&](ControlChannel& channel, absl::Duration left) {
    return channel.Save(request, left, options_.interrupted);
  });
  if (!reply.ok()) return CallError(reply.status(), "save", timeout);
  return SavedSnapshot{reply->path(), reply->step(), reply->size_bytes()};
}

absl::Status Worker::Detach(absl::Duration timeout) {
  RETURN_IF_ERROR(CheckUsable());
  RETURN_IF_ERROR(Freeze());
  const absl::Status status =
      Call(timeout, [](ControlChannel& channel, absl::Duration left) {
        return channel.Detach(left);
      });
  return End(CallError(status, "detach", timeout), "detached");
}

absl::Status Worker::Close(absl::Duration timeout) {
  RETURN_IF_ERROR(CheckUsable());
  RETURN_IF_ERROR(Freeze());
  const absl::Status status =
      Call(timeout, [](ControlChannel& channel, absl::Duration left) {
        return channel.Close(left);
      });
  // The job may be over, and its daemon with it, before the reply is sent.
  if (view().IsClosed()) return End(absl::OkStatus(), "closed");
  return End(CallError(status, "close", timeout), "closed");
}

// Before the slot is given up: a successor gets the same memory.
absl::Status Worker::Freeze() {
  // A copy of what is not resident would be of zeros, and as large as all.
  const absl::Status weights =
      gathers_weights() ? absl::OkStatus() : attachment_->weights.MakePrivate();
  const absl::Status gradients = attachment_->gradients.MakePrivate();
  if (weights.ok() && gradients.ok()) return absl::OkStatus();
  // Half frozen it cannot go on; the daemon finds the connection closed.
  return End(weights.ok() ? gradients : weights, "detached");
}

absl::Status Worker::End(absl::Status status, std::string_view how) {
  over_ = absl::FailedPreconditionError(
      absl::StrCat("the session is ", std::string(how), ": open another one"));
  attachment_->connection = Connection();
  return status;
}

}  // namespace ballast::worker
