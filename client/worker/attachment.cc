#include "client/worker/attachment.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/worker/ties.h"
#include "nlohmann/json.hpp"
#include "proto/handle_socket.h"
#include "server/base/clock.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"

namespace ballast::worker {
namespace {

constexpr absl::Duration kSegmentLimit = absl::Seconds(10);
constexpr absl::Duration kStatsLimit = absl::Seconds(2);
constexpr absl::Duration kHangUpLimit = absl::Milliseconds(200);

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

// The segments, in whatever order they come.
class Receiver {
 public:
  explicit Receiver(const v1::AttachReply& reply) {
    Expect(proto::SegmentKind::kControlBlock, 0);
    Expect(proto::SegmentKind::kGradients, reply.gradients_bytes());
    Expect(proto::SegmentKind::kWeights, reply.weights_bytes());
    Expect(proto::SegmentKind::kInitial, reply.initial_bytes());
  }

  absl::Status ReceiveAll(ipc::HandleClient& handle) {
    for (size_t i = 0; i < expected_.size(); ++i) {
      ASSIGN_OR_RETURN(auto received, handle.ReceiveSegment(kSegmentLimit));
      RETURN_IF_ERROR(Place(std::move(received)));
    }
    return absl::OkStatus();
  }

  base::Segment Take(proto::SegmentKind kind) {
    for (Expected& expected : expected_) {
      if (expected.kind == kind) return std::move(expected.segment);
    }
    return base::Segment();
  }

 private:
  struct Expected {
    proto::SegmentKind kind;
    uint64_t size_bytes;  // 0: any
    base::Segment segment;
  };

  void Expect(proto::SegmentKind kind, uint64_t size_bytes) {
    const bool is_control = kind == proto::SegmentKind::kControlBlock;
    if (is_control || size_bytes > 0) {
      expected_.push_back({kind, size_bytes, base::Segment()});
    }
  }

  absl::Status Place(ipc::HandleClient::ReceivedSegment received) {
    for (Expected& expected : expected_) {
      if (expected.kind != received.kind) continue;
      const bool fits = expected.size_bytes == 0 ||
                        expected.size_bytes == received.size_bytes;
      if (!fits || expected.segment.size_bytes() > 0) break;
      const base::Access access = received.kind == proto::SegmentKind::kWeights
                                      ? base::Access::kReadOnly
                                      : base::Access::kReadWrite;
      // Checks fd, seals and true size before it maps.
      ASSIGN_OR_RETURN(expected.segment,
                       base::Segment::Map(std::move(received.fd),
                                          received.size_bytes, access));
      return absl::OkStatus();
    }
    return absl::DataLossError(
        absl::StrCat("the daemon sent a segment that was not announced: kind ",
                     static_cast<uint32_t>(received.kind), ", ",
                     received.size_bytes, " bytes"));
  }

  std::vector<Expected> expected_;
};

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

// What ends the opening, told so that one knows whom to look at.
absl::Status OpenError(const absl::Status& status, const Options& options,
                       Connection& connection) {
  const std::string where = absl::StrCat("the daemon at ", options.address);
  if (absl::IsDeadlineExceeded(status)) {
    auto stats = connection.channel->GetStats(kStatsLimit);
    const bool is_silent = absl::IsDeadlineExceeded(stats.status()) ||
                           absl::IsUnavailable(stats.status());
    if (!stats.ok()) {
      // A daemon that answers has ended the job: its own words say why.
      if (!is_silent) return status;
      return absl::DeadlineExceededError(
          absl::StrCat(where, " does not answer: the session was not open in ",
                       absl::FormatDuration(options.open_timeout)));
    }
    const std::string waiting = WaitingFor(stats->json());
    if (waiting.empty()) return status;
    return absl::DeadlineExceededError(
        absl::StrCat("the job did not start in time; it waits: ", waiting));
  }
  if (!absl::IsUnavailable(status)) return status;
  // The two connections of a daemon that dies end one after the other.
  const base::MonotonicClock clock;
  const absl::Time limit = clock.Now() + kHangUpLimit;
  while (connection.handle->IsOpen()) {
    if (clock.Now() >= limit) return status;  // its own word
    absl::SleepFor(absl::Milliseconds(10));
  }
  return absl::UnavailableError(absl::StrCat(
      where, " went away while the session was opening (", status.message(),
      "): see its log, start it again and open the session anew"));
}

// Attaches, again on a new connection while the refusal is a passing one.
absl::Status ConnectAndAttach(const Options& options,
                              const v1::AttachRequest& request,
                              absl::FunctionRef<absl::Duration()> left,
                              Attachment& result) {
  Backoff backoff(std::min(options.connect_timeout, left()),
                  options.interrupted);
  for (;;) {
    ASSIGN_OR_RETURN(result.connection,
                     Connect(options.address, options.token,
                             std::max(backoff.left(), absl::Milliseconds(1)),
                             options.interrupted));
    auto attach =
        result.connection.channel->Attach(request, left(), options.interrupted);
    if (attach.ok()) {
      result.attach = *std::move(attach);
      return absl::OkStatus();
    }
    if (!IsPassing(attach.status()) || backoff.left() <= absl::ZeroDuration()) {
      return OpenError(attach.status(), options, result.connection);
    }
    RETURN_IF_ERROR(backoff.Pause());
  }
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

}  // namespace

std::string WaitingFor(const std::string& stats_json) {
  return FindWaitingFor(nlohmann::json::parse(stats_json, nullptr, false));
}

absl::StatusOr<Attachment> Attach(const Options& options) {
  const base::MonotonicClock clock;
  const absl::Time deadline = clock.Now() + options.open_timeout;
  const auto left = [&] {
    return std::max(deadline - clock.Now(), absl::Milliseconds(1));
  };
  Attachment result;
  for (const v1::Tensor& tensor : options.job.tensors()) {
    TensorView view;
    ASSIGN_OR_RETURN(view.size_bytes, SizeBytes(tensor));
    view.is_frozen = tensor.frozen();
    result.tensors.push_back(view);
  }
  RETURN_IF_ERROR(CheckInitialValues(options, result.tensors));

  v1::AttachRequest request;
  *request.mutable_job() = options.job;
  *request.mutable_topology() = options.topology;
  request.set_resume(options.resume);
  request.set_coordinator(options.coordinator);
  request.set_load(options.load);
  request.set_has_initial_values(options.topology.rank() == 0 &&
                                 !options.initial_values.empty());
  RETURN_IF_ERROR(ConnectAndAttach(options, request, left, result));
  RETURN_IF_ERROR(TakePlacements(result.attach, result.tensors));
  ASSIGN_OR_RETURN(result.tracker, MakeTracker(result.attach));
  ASSIGN_OR_RETURN(result.holdings, MakeHoldings(result.attach));
  if (result.attach.initial_bytes() != 0 &&
      result.attach.initial_bytes() < result.attach.weights_bytes()) {
    return absl::DataLossError("segment for initial values is too small");
  }

  Receiver receiver(result.attach);
  RETURN_IF_ERROR(receiver.ReceiveAll(*result.connection.handle));
  result.control_block = receiver.Take(proto::SegmentKind::kControlBlock);
  result.gradients = receiver.Take(proto::SegmentKind::kGradients);
  result.weights = receiver.Take(proto::SegmentKind::kWeights);
  ASSIGN_OR_RETURN(result.view,
                   ControlView::Create(result.control_block.bytes(),
                                       result.attach.num_buckets(),
                                       options.job.optimizer().groups_size(),
                                       result.holdings.num_units()));
  if (const auto failure = result.view.FailureAfter(0)) {
    result.failure_seen = failure->count;  // of an earlier life
  }
  if (base::Segment initial = receiver.Take(proto::SegmentKind::kInitial);
      initial.size_bytes() > 0) {
    WriteInitialValues(options, result.tensors, initial);
  }

  RETURN_IF_ERROR(Begin(options, left(), result));
  return result;
}

absl::Status Begin(const Options& options, absl::Duration timeout,
                   Attachment& attachment) {
  auto reply = CallAgain(attachment.connection, timeout, options.interrupted,
                         [&](ControlChannel& channel, absl::Duration left) {
                           return channel.Begin(left, options.interrupted);
                         });
  if (!reply.ok()) {
    return OpenError(reply.status(), options, attachment.connection);
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
