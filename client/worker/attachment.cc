#include "client/worker/attachment.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/worker/opening.h"
#include "client/worker/segment_receiver.h"
#include "client/worker/ties.h"
#include "nlohmann/json.hpp"
#include "proto/handle_socket.h"
#include "server/base/clock.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"

namespace ballast::worker {
namespace {

constexpr absl::Duration kStatsLimit = absl::Seconds(2);

int SizeOf(v1::DType dtype) { return dtype == v1::DTYPE_FLOAT32 ? 4 : 2; }

absl::StatusOr<uint64_t> SizeBytes(const v1::Tensor& tensor) {
  uint64_t elements = 1;
  for (const int64_t dimension : tensor.shape()) {
    if (dimension < 0 ||
        __builtin_mul_overflow(elements, static_cast<uint64_t>(dimension),
                               &elements) ||
        elements > (uint64_t{1} << 48)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", base::Quoted(tensor.name()),
                       " has an impossible shape: dimension ", dimension));
    }
  }
  return elements * SizeOf(tensor.dtype());
}

absl::Status CheckInitialValues(const Options& options,
                                std::span<const TensorView> tensors) {
  const auto& values = options.initial_values;
  if (values.empty()) return absl::OkStatus();
  if (values.size() != tensors.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(values.size(), " initial values for ", tensors.size(),
                     " tensors: give all or none"));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].size() == tensors[i].size_bytes) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "initial value of tensor ", base::Quoted(options.job.tensors(i).name()),
        " has ", values[i].size(), " bytes, its shape and dtype need ",
        tensors[i].size_bytes));
  }
  return CheckTies(values, [&](size_t i) {
    return options.job.tensors(static_cast<int>(i)).name();
  });
}

absl::Status TakePlacements(const v1::AttachReply& reply,
                            std::vector<TensorView>& tensors) {
  if (reply.tensors_size() != tensors.size()) {
    return absl::DataLossError("attach reply has another number of tensors");
  }
  const auto fits = [](uint64_t offset, uint64_t size, uint64_t segment) {
    return offset % 8 == 0 && offset <= segment && size <= segment - offset;
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    TensorView& tensor = tensors[i];
    if (tensor.size_bytes == 0) continue;
    const v1::TensorPlacement& place = reply.tensors(i);
    tensor.weight_offset = place.weight_offset();
    tensor.gradient_offset = place.gradient_offset();
    if (!fits(tensor.weight_offset, tensor.size_bytes, reply.weights_bytes()) ||
        (!tensor.is_frozen && !fits(tensor.gradient_offset, tensor.size_bytes,
                                    reply.gradients_bytes()))) {
      return absl::DataLossError(
          absl::StrCat("attach reply places tensor ", i, " outside"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PushTracker> MakeTracker(const v1::AttachReply& reply) {
  std::vector<BucketRange> ranges;
  for (const v1::TensorPlacement& place : reply.tensors()) {
    ranges.push_back({place.first_bucket(), place.last_bucket()});
  }
  if (reply.num_buckets() < 0 || reply.num_buckets() > proto::kMaxBuckets) {
    return absl::DataLossError("attach reply has an impossible bucket count");
  }
  return PushTracker::Create(std::move(ranges), reply.num_buckets());
}

absl::StatusOr<Holdings> MakeHoldings(const v1::AttachReply& reply) {
  std::vector<UnitRange> ranges;
  for (const v1::TensorPlacement& place : reply.tensors()) {
    ranges.push_back({place.first_unit(), place.last_unit()});
  }
  return Holdings::Create(std::move(ranges), reply.num_units(),
                          reply.num_frozen_units());
}

void WriteInitialValues(const Options& options,
                        std::span<const TensorView> tensors,
                        base::Segment& segment) {
  if (options.initial_values.empty()) return;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto value = options.initial_values[i];
    if (value.empty()) continue;
    std::memcpy(segment.bytes().data() + tensors[i].weight_offset, value.data(),
                value.size());
  }
}

// Where a call took too long: told so that one knows whom to look at.
absl::Status Explain(const absl::Status& status, const Options& options,
                     Connection& connection) {
  if (!absl::IsDeadlineExceeded(status)) return status;
  auto stats = connection.channel->GetStats(kStatsLimit);
  const bool is_silent = absl::IsDeadlineExceeded(stats.status()) ||
                         absl::IsUnavailable(stats.status());
  if (!stats.ok()) {
    // A daemon that answers has ended the job: its own words say why.
    if (!is_silent) return status;
    return absl::DeadlineExceededError(
        absl::StrCat("the daemon at ", options.address,
                     " does not answer: the session was not open in ",
                     absl::FormatDuration(options.open_timeout)));
  }
  const std::string waiting = WaitingFor(stats->json());
  if (waiting.empty()) return status;
  return absl::DeadlineExceededError(
      absl::StrCat("the job did not start in time; it waits: ", waiting));
}

std::string FindWaitingFor(const nlohmann::json& value) {
  if (!value.is_structured()) return "";
  for (const auto& [key, item] : value.items()) {
    if (key == "waiting_for" && item.is_string()) {
      return item.get<std::string>();
    }
    if (std::string text = FindWaitingFor(item); !text.empty()) return text;
  }
  return "";
}

absl::StatusOr<std::vector<TensorView>> DescribeTensors(
    const Options& options) {
  std::vector<TensorView> tensors;
  for (const v1::Tensor& tensor : options.job.tensors()) {
    TensorView view;
    ASSIGN_OR_RETURN(view.size_bytes, SizeBytes(tensor));
    view.is_frozen = tensor.frozen();
    tensors.push_back(view);
  }
  RETURN_IF_ERROR(CheckInitialValues(options, tensors));
  return tensors;
}

v1::AttachRequest MakeRequest(const Options& options) {
  v1::AttachRequest request;
  *request.mutable_job() = options.job;
  *request.mutable_topology() = options.topology;
  request.set_resume(options.resume);
  request.set_coordinator(options.coordinator);
  request.set_load(options.load);
  request.set_has_initial_values(options.topology.rank() == 0 &&
                                 !options.initial_values.empty());
  return request;
}

absl::Duration Until(absl::Time deadline) {
  return std::max(deadline - base::MonotonicClock().Now(),
                  absl::Milliseconds(1));
}

// Takes the segments that belong to `result.attach`.
absl::Status TakeSegments(const Options& options, Attachment& result) {
  RETURN_IF_ERROR(TakePlacements(result.attach, result.tensors));
  ASSIGN_OR_RETURN(result.tracker, MakeTracker(result.attach));
  ASSIGN_OR_RETURN(result.holdings, MakeHoldings(result.attach));
  if (result.attach.initial_bytes() != 0 &&
      result.attach.initial_bytes() < result.attach.weights_bytes()) {
    return absl::DataLossError("segment for initial values is too small");
  }
  SegmentReceiver receiver(result.attach);
  RETURN_IF_ERROR(receiver.ReceiveAll(*result.connection.handle));
  result.control_block = receiver.Take(proto::SegmentKind::kControlBlock);
  result.gradients = receiver.Take(proto::SegmentKind::kGradients);
  result.weights = receiver.Take(proto::SegmentKind::kWeights);
  ASSIGN_OR_RETURN(result.view,
                   ControlView::Create(result.control_block.bytes(),
                                       result.attach.num_buckets(),
                                       options.job.optimizer().groups_size(),
                                       result.holdings.num_units()));
  result.has_view = true;
  if (const auto failure = result.view.FailureAfter(0)) {
    result.failure_seen = failure->count;  // of an earlier life
  }
  if (base::Segment initial = receiver.Take(proto::SegmentKind::kInitial);
      initial.size_bytes() > 0) {
    WriteInitialValues(options, result.tensors, initial);
  }
  return absl::OkStatus();
}

// On a connection that is there.
absl::Status AttachOn(const Options& options, const v1::AttachRequest& request,
                      absl::Time deadline, Attachment& result) {
  auto attach = result.connection.channel->Attach(request, Until(deadline),
                                                  options.interrupted);
  if (!attach.ok()) {
    return Explain(attach.status(), options, result.connection);
  }
  result.attach = *std::move(attach);
  RETURN_IF_ERROR(TakeSegments(options, result));
  return Begin(options, Until(deadline), result);
}

// The last word of a daemon, which may reach the control block alone.
std::optional<Failure> LastWord(const Attachment& attempt) {
  if (!attempt.has_view) return std::nullopt;
  auto failure = attempt.view.FailureAfter(attempt.failure_seen);
  return failure.has_value() && failure->is_fatal ? failure : std::nullopt;
}

AttemptEnd HowConnectEnded(const absl::Status& status) {
  if (IsPassing(status)) return AttemptEnd::kPassing;
  // A daemon that takes much over begins to answer late.
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)
             ? AttemptEnd::kAbsent
             : AttemptEnd::kFinal;
}

// After Connect. The words of a daemon that lives count as they are, but for
// Unavailable: it drains, or the job ends since another node has gone.
AttemptEnd HowAttachEnded(const absl::Status& status, const Options& options,
                          const Attachment& attempt) {
  if (IsPassing(status)) return AttemptEnd::kPassing;
  const bool has_no_lease = absl::IsFailedPrecondition(status) &&
                            absl::EndsWith(status.message(), "connect again");
  if (has_no_lease) return AttemptEnd::kEnded;
  const bool is_unavailable = absl::IsUnavailable(status);
  // A daemon that ends cancels its calls, too.
  const bool is_cancelled = absl::IsCancelled(status) &&
                            !(options.interrupted && options.interrupted());
  if (!is_unavailable && !is_cancelled) return AttemptEnd::kFinal;
  if (!LastWord(attempt).has_value() &&
      (!attempt.connection.handle->IsOpen() ||
       attempt.connection.channel->IsBroken(status))) {
    return AttemptEnd::kLost;
  }
  return is_unavailable ? AttemptEnd::kEnded : AttemptEnd::kFinal;
}

// Nothing of an attempt that fails is left.
absl::StatusOr<Attachment> Try(const Options& options,
                               const v1::AttachRequest& request,
                               const std::vector<TensorView>& tensors,
                               const Opening& opening, AttemptEnd* how) {
  Attachment result;
  result.tensors = tensors;
  auto connection = Connect(options.address, options.token,
                            Until(opening.patience()), options.interrupted);
  if (!connection.ok()) {
    *how = HowConnectEnded(connection.status());
    return connection.status();
  }
  result.connection = *std::move(connection);
  absl::Status status = AttachOn(options, request, opening.deadline(), result);
  if (status.ok()) return result;
  if (const auto word = LastWord(result);
      word.has_value() && absl::IsUnavailable(status)) {
    status = absl::Status(word->code, word->text);
  }
  *how = HowAttachEnded(status, options, result);
  return status;
}

}  // namespace

std::string WaitingFor(const std::string& stats_json) {
  return FindWaitingFor(nlohmann::json::parse(stats_json, nullptr, false));
}

absl::StatusOr<Attachment> Attach(const Options& given) {
  // Whoever was interrupted says so once, perhaps while an attempt ends for
  // another reason: it counts for all that follow.
  Options options = given;
  const auto was_interrupted = std::make_shared<bool>(false);
  if (given.interrupted) {
    options.interrupted = [&given, was_interrupted] {
      return *was_interrupted = *was_interrupted || given.interrupted();
    };
  }
  ASSIGN_OR_RETURN(const std::vector<TensorView> tensors,
                   DescribeTensors(options));
  const v1::AttachRequest request = MakeRequest(options);
  const base::MonotonicClock clock;
  Opening opening(
      {options.address, options.connect_timeout, options.open_timeout},
      clock.Now());
  Backoff backoff(options.open_timeout, options.interrupted);
  for (;;) {
    AttemptEnd how = AttemptEnd::kFinal;
    auto attempt = Try(options, request, tensors, opening, &how);
    if (attempt.ok() && *was_interrupted) {
      return absl::CancelledError("interrupted while the session was opening");
    }
    if (attempt.ok()) return attempt;
    RETURN_IF_ERROR(opening.OnFailed(how, attempt.status(), clock.Now()));
    if (const std::string news = opening.TakeNews(clock.Now());
        !news.empty() && options.log) {
      options.log(news);
    }
    RETURN_IF_ERROR(backoff.Pause());
    RETURN_IF_ERROR(opening.CheckTime(clock.Now()));
  }
}

absl::Status Begin(const Options& options, absl::Duration timeout,
                   Attachment& attachment) {
  auto reply = CallAgain(attachment.connection, timeout, options.interrupted,
                         [&](ControlChannel& channel, absl::Duration left) {
                           return channel.Begin(left, options.interrupted);
                         });
  if (!reply.ok()) {
    return Explain(reply.status(), options, attachment.connection);
  }
  const v1::BeginReply& begin = attachment.begin = *std::move(reply);
  if (begin.groups_size() != options.job.optimizer().groups_size()) {
    return absl::DataLossError("begin reply has another number of groups");
  }
  RETURN_IF_ERROR(ShareAll(attachment));
  attachment.tracker.Reset();
  for (const int32_t bucket : begin.pushed_buckets()) {
    if (!attachment.tracker.MarkPushed(bucket)) {
      return absl::DataLossError("begin reply names an unknown bucket");
    }
  }
  // Those gradients count, and the daemon may be reading them.
  if (begin.pushed_buckets_size() > 0 &&
      attachment.gradients.size_bytes() > 0) {
    RETURN_IF_ERROR(attachment.gradients.Shadow());
    attachment.shadows_gradients = true;
  }
  const bool is_given =
      begin.has_step_input() &&
      begin.pushed_buckets_size() == attachment.tracker.num_buckets();
  if (is_given && !attachment.holdings.are_gathered() &&
      attachment.weights.size_bytes() > 0) {
    RETURN_IF_ERROR(attachment.weights.Hold());
    attachment.holds_weights = true;
  }
  return absl::OkStatus();
}

absl::Status ShareAll(Attachment& attachment) {
  if (std::exchange(attachment.shadows_gradients, false)) {
    RETURN_IF_ERROR(attachment.gradients.Share());
  }
  if (std::exchange(attachment.holds_weights, false)) {
    RETURN_IF_ERROR(attachment.weights.Share());
  }
  return absl::OkStatus();
}

}  // namespace ballast::worker
