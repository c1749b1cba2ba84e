#include "client/capi/ballast.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/capi/options_json.h"
#include "client/worker/load_weights.h"
#include "client/worker/worker.h"
#include "server/base/status_macros.h"

using ballast::worker::Worker;

struct ballast_session {
  std::unique_ptr<Worker> worker;
  std::atomic<bool> is_busy{false};
  pid_t creator_pid = 0;
};

namespace {

static_assert(sizeof(ballast_group) ==
              offsetof(ballast::proto::GroupValues, load));
// The ABI: other languages mirror these structs.
static_assert(sizeof(ballast_error) == 16 + BALLAST_MESSAGE_BYTES);
static_assert(sizeof(ballast_tensor) == 48);
static_assert(sizeof(ballast_info) == 56);
static_assert(sizeof(ballast_step_result) == 232);

int Report(const absl::Status& status, ballast_error* error) {
  if (error != nullptr) {
    error->code = static_cast<int32_t>(status.code());
    error->reserved = 0;
    error->resume_step = ballast::worker::ResumeStep(status).value_or(-1);
    const size_t length =
        std::min(status.message().size(), size_t{BALLAST_MESSAGE_BYTES - 1});
    std::memcpy(error->message, status.message().data(), length);
    error->message[length] = '\0';
  }
  return static_cast<int>(status.code());
}

absl::Status Missing(std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(what), " is NULL"));
}

int ToIndex(size_t tensor) {
  return tensor > INT32_MAX ? -1 : static_cast<int>(tensor);
}

absl::StatusOr<std::vector<int>> ToIndexes(const size_t* tensors,
                                           size_t num_tensors) {
  if (tensors == nullptr && num_tensors > 0) return Missing("tensors");
  std::vector<int> indexes;
  for (size_t i = 0; i < num_tensors; ++i) {
    indexes.push_back(ToIndex(tensors[i]));
  }
  return indexes;
}

// Runs `call` as the session's only one; the refusal of forked children comes
// from the Worker itself.
template <typename F>
int Guarded(ballast_session* session, ballast_error* error, F call) {
  if (session == nullptr) return Report(Missing("session"), error);
  if (session->is_busy.exchange(true, std::memory_order_acquire) &&
      getpid() == session->creator_pid) {
    return Report(absl::FailedPreconditionError(
                      "another thread is in a call of this session: one call "
                      "at a time"),
                  error);
  }
  const absl::Status status = call(*session->worker);
  session->is_busy.store(false, std::memory_order_release);
  return Report(status, error);
}

absl::StatusOr<absl::Duration> Timeout(double seconds) {
  if (!(seconds > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "timeout must be a positive number of seconds, not ", seconds));
  }
  return absl::Seconds(std::min(seconds, 1e9));
}

absl::Status AddTensor(const ballast_tensor& tensor, size_t index,
                       ballast::worker::Options& options) {
  if (tensor.name == nullptr) return Missing("tensor name");
  const bool is_shape_missing = tensor.ndim > 0 && tensor.shape == nullptr;
  if (tensor.ndim < 0 || tensor.ndim > 64 || is_shape_missing ||
      tensor.group < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", index, " \"", tensor.name, "\": ndim ", tensor.ndim,
        " must be in [0, 64], its shape given, its group ", tensor.group,
        " not negative"));
  }
  auto* added = options.job.add_tensors();
  added->set_name(tensor.name);
  for (int d = 0; d < tensor.ndim; ++d) added->add_shape(tensor.shape[d]);
  added->set_dtype(static_cast<ballast::v1::DType>(tensor.dtype));
  added->set_frozen(tensor.frozen != 0);
  added->set_group(tensor.group);
  options.initial_values.emplace_back(
      static_cast<const std::byte*>(tensor.initial),
      tensor.initial == nullptr ? 0 : tensor.initial_bytes);
  return absl::OkStatus();
}

absl::Status AddTensors(const ballast_tensor* tensors, size_t num_tensors,
                        ballast::worker::Options& options) {
  if (num_tensors > 0 && tensors == nullptr) return Missing("tensors");
  size_t num_values = 0;
  for (size_t i = 0; i < num_tensors; ++i) {
    RETURN_IF_ERROR(AddTensor(tensors[i], i, options));
    num_values += tensors[i].initial != nullptr;
  }
  // A partial list is refused by the Worker, which knows the sizes.
  if (num_values == 0) options.initial_values.clear();
  return absl::OkStatus();
}

ballast_path_quality ToQuality(const ballast::worker::PathQuality& from) {
  return {.sampled = from.sampled,
          .relative_error = from.relative_error,
          .clipped_share = from.clipped_share,
          .residual_norm = from.residual_norm,
          .num_wider = from.num_wider,
          .reserved = 0};
}

void Fill(const ballast::worker::StepResult& from, ballast_step_result* to) {
  to->step = from.step;
  to->weight_version = from.weight_version;
  to->optimizer_step = from.optimizer_step;
  to->skipped = from.skipped;
  to->loaded = from.loaded;
  to->reserved = 0;
  to->fallbacks = from.fallbacks;
  to->grad_norm = from.grad_norm;
  to->clip_factor = from.clip_factor;
  to->lr = from.lr;
  to->relative_error = from.relative_error;
  to->wire_bytes_sent = from.wire_bytes_sent;
  to->wire_bytes_received = from.wire_bytes_received;
  to->payload_bytes = from.payload_bytes;
  to->seconds = from.seconds;
  std::copy(std::begin(from.stage_seconds), std::end(from.stage_seconds),
            to->stage_seconds);
  to->gradients = ToQuality(from.gradients);
  to->weights = ToQuality(from.weights);
}

absl::Status CopyOut(std::string_view from, void* buffer, size_t capacity,
                     size_t* size_bytes) {
  if (size_bytes == nullptr) return Missing("size_bytes");
  if (buffer == nullptr && capacity > 0) return Missing("buffer");
  const size_t copied = std::min(capacity, from.size());
  if (copied > 0) std::memcpy(buffer, from.data(), copied);
  *size_bytes = from.size();
  return absl::OkStatus();
}

absl::Status CheckGroup(Worker& worker, size_t index) {
  if (index < worker.groups().size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "param group ", index, " is not in [0, ", worker.groups().size(), ")"));
}

}  // namespace

extern "C" {

uint32_t ballast_abi_version(void) {
  return BALLAST_ABI_MAJOR << 16 | BALLAST_ABI_MINOR;
}

const char* ballast_version(void) { return "0.1.0"; }

int ballast_open(const char* options_json, const ballast_tensor* tensors,
                 size_t num_tensors, ballast_interrupted interrupted,
                 void* context, ballast_session** session,
                 ballast_error* error) {
  if (session == nullptr) return Report(Missing("session"), error);
  *session = nullptr;
  if (options_json == nullptr) return Report(Missing("options_json"), error);
  auto options = ballast::capi::ParseOptions(options_json);
  if (!options.ok()) return Report(options.status(), error);
  if (auto status = AddTensors(tensors, num_tensors, *options); !status.ok()) {
    return Report(status, error);
  }
  if (interrupted != nullptr) {
    options->interrupted = [=] { return interrupted(context) != 0; };
  }
  options->log = [](const std::string& line) {
    std::fprintf(stderr, "ballast: %s\n", line.c_str());
  };
  auto worker = Worker::Open(*std::move(options));
  if (!worker.ok()) return Report(worker.status(), error);
  auto opened = std::make_unique<ballast_session>();
  opened->worker = *std::move(worker);
  opened->creator_pid = getpid();
  *session = opened.release();
  return Report(absl::OkStatus(), error);
}

int ballast_get_info(ballast_session* session, ballast_info* info,
                     ballast_error* error) {
  return Guarded(session, error, [&](Worker& worker) {
    if (info == nullptr) return Missing("info");
    info->open_step = worker.open_step();
    info->weight_version = worker.weight_version();
    info->optimizer_step = worker.optimizer_step();
    info->generation = worker.generation();
    info->resumed = worker.is_resumed();
    info->num_buckets = worker.num_buckets();
    info->num_groups = static_cast<int32_t>(worker.groups().size());
    info->num_tensors = worker.num_tensors();
    info->step_is_given = worker.is_step_given();
    info->reserved = 0;
    return absl::OkStatus();
  });
}

const void* ballast_params(ballast_session* session, size_t tensor,
                           uint64_t* bytes) {
  std::span<const std::byte> params;
  if (session != nullptr) params = session->worker->params(ToIndex(tensor));
  if (bytes != nullptr) *bytes = params.size();
  return params.data();
}

void* ballast_grads(ballast_session* session, size_t tensor, uint64_t* bytes) {
  std::span<std::byte> grads;
  if (session != nullptr) grads = session->worker->grads(ToIndex(tensor));
  if (bytes != nullptr) *bytes = grads.size();
  return grads.data();
}

int ballast_weights(ballast_session* session, size_t tensor, int* fd,
                    uint64_t* segment_bytes, uint64_t* offset,
                    ballast_error* error) {
  return Guarded(session, error, [&](Worker& worker) -> absl::Status {
    ASSIGN_OR_RETURN(const auto place, worker.FindWeights(ToIndex(tensor)));
    if (fd != nullptr) *fd = place.fd;
    if (segment_bytes != nullptr) *segment_bytes = place.segment_bytes;
    if (offset != nullptr) *offset = place.offset;
    return absl::OkStatus();
  });
}

int ballast_group_get(ballast_session* session, size_t index,
                      ballast_group* group, ballast_error* error) {
  return Guarded(session, error, [&](Worker& worker) {
    if (group == nullptr) return Missing("group");
    RETURN_IF_ERROR(CheckGroup(worker, index));
    std::memcpy(group, &worker.groups()[index], sizeof(*group));
    return absl::OkStatus();
  });
}

int ballast_group_set(ballast_session* session, size_t index,
                      const ballast_group* group, ballast_error* error) {
  return Guarded(session, error, [&](Worker& worker) {
    if (group == nullptr) return Missing("group");
    RETURN_IF_ERROR(CheckGroup(worker, index));
    std::memcpy(&worker.groups()[index], group, sizeof(*group));
    return absl::OkStatus();
  });
}

int ballast_push(ballast_session* session, size_t tensor,
                 ballast_error* error) {
  return Guarded(session, error,
                 [&](Worker& worker) { return worker.Push(ToIndex(tensor)); });
}

int ballast_step(ballast_session* session, const void* cursor,
                 size_t cursor_bytes, int wait_published, double timeout,
                 ballast_step_result* result, ballast_error* error) {
  return Guarded(session, error, [&](Worker& worker) -> absl::Status {
    if (result == nullptr) return Missing("result");
    if (cursor == nullptr && cursor_bytes > 0) return Missing("cursor");
    ASSIGN_OR_RETURN(const absl::Duration limit, Timeout(timeout));
    ballast::worker::StepRequest request;
    request.cursor = {static_cast<const char*>(cursor), cursor_bytes};
    request.wait_published = wait_published != 0;
    request.timeout = limit;
    ASSIGN_OR_RETURN(const auto summary, worker.Step(request));
    Fill(summary, result);
    return absl::OkStatus();
  });
}

int ballast_load_weights(ballast_session* session, const void* const* values,
                         size_t num_values, int reset_state, const void* cursor,
                         size_t cursor_bytes, double timeout,
                         ballast_step_result* result, ballast_error* error) {
  return Guarded(session, error, [&](Worker& worker) -> absl::Status {
    if (result == nullptr) return Missing("result");
    if (values == nullptr && num_values > 0) return Missing("values");
    ASSIGN_OR_RETURN(const absl::Duration limit, Timeout(timeout));
    std::vector<std::span<const std::byte>> spans;
    for (size_t i = 0; i < num_values; ++i) {
      const auto* const value = static_cast<const std::byte*>(values[i]);
      const size_t size = worker.params(ToIndex(i)).size();
      spans.emplace_back(value, value == nullptr ? 0 : size);
    }
    ballast::worker::LoadRequest request;
    request.values = spans;
    request.resets_state = reset_state != 0;
    if (cursor != nullptr) {
      request.cursor.emplace(static_cast<const char*>(cursor), cursor_bytes);
    }
    request.timeout = limit;
    ASSIGN_OR_RETURN(const auto summary,
                     ballast::worker::LoadWeights(worker, request));
    Fill(summary, result);
    return absl::OkStatus();
  });
}

int ballast_wait(ballast_session* session, size_t tensor, double timeout,
                 ballast_error* error) {
  return Guarded(session, error, [&](Worker& worker) -> absl::Status {
    ASSIGN_OR_RETURN(const absl::Duration limit, Timeout(timeout));
    if (tensor == BALLAST_ALL_TENSORS) return worker.WaitAll(limit);
    return worker.Wait(ToIndex(tensor), limit);
  });
}

int ballast_gather(ballast_session* session, const size_t* tensors,
                   size_t num_tensors, int wait, double timeout,
                   ballast_error* error) {
  return Guarded(session, error, [&](Worker& worker) -> absl::Status {
    ASSIGN_OR_RETURN(const absl::Duration limit, Timeout(timeout));
    ASSIGN_OR_RETURN(const auto indexes, ToIndexes(tensors, num_tensors));
    return worker.Gather(indexes, wait != 0, limit);
  });
}

int ballast_give_back(ballast_session* session, const size_t* tensors,
                      size_t num_tensors, ballast_error* error) {
  return Guarded(session, error, [&](Worker& worker) -> absl::Status {
    ASSIGN_OR_RETURN(const auto indexes, ToIndexes(tensors, num_tensors));
    return worker.GiveBack(indexes);
  });
}

int ballast_is_held(ballast_session* session, size_t tensor) {
  return session != nullptr && session->worker->IsHeld(ToIndex(tensor));
}

int ballast_gathers_weights(ballast_session* session) {
  return session != nullptr && session->worker->gathers_weights();
}

int ballast_cursor(ballast_session* session, void* buffer, size_t capacity,
                   size_t* size_bytes, ballast_error* error) {
  return Guarded(session, error, [&](Worker& worker) {
    return CopyOut(worker.cursor(), buffer, capacity, size_bytes);
  });
}

int ballast_rank0_cursor(ballast_session* session, void* buffer,
                         size_t capacity, size_t* size_bytes,
                         ballast_error* error) {
  return Guarded(session, error, [&](Worker& worker) {
    return CopyOut(worker.rank0_cursor(), buffer, capacity, size_bytes);
  });
}

int ballast_resumed_from(ballast_session* session, void* buffer,
                         size_t capacity, size_t* size_bytes,
                         ballast_error* error) {
  return Guarded(session, error, [&](Worker& worker) {
    return CopyOut(worker.resumed_from(), buffer, capacity, size_bytes);
  });
}

int ballast_stats(ballast_session* session, double timeout, char** json,
                  ballast_error* error) {
  return Guarded(session, error, [&](Worker& worker) -> absl::Status {
    if (json == nullptr) return Missing("json");
    *json = nullptr;
    ASSIGN_OR_RETURN(const absl::Duration limit, Timeout(timeout));
    ASSIGN_OR_RETURN(const std::string text, worker.Stats(limit));
    *json = strdup(text.c_str());
    return *json != nullptr ? absl::OkStatus()
                            : absl::ResourceExhaustedError("out of memory");
  });
}

int ballast_save(ballast_session* session, const char* name, double timeout,
                 int64_t* step, char** path, ballast_error* error) {
  return Guarded(session, error, [&](Worker& worker) -> absl::Status {
    if (path != nullptr) *path = nullptr;
    ASSIGN_OR_RETURN(const absl::Duration limit, Timeout(timeout));
    ASSIGN_OR_RETURN(const auto saved,
                     worker.Save(name == nullptr ? "" : name, limit));
    if (step != nullptr) *step = saved.step;
    if (path == nullptr) return absl::OkStatus();
    *path = strdup(saved.path.c_str());
    return *path != nullptr ? absl::OkStatus()
                            : absl::ResourceExhaustedError("out of memory");
  });
}

void ballast_free(void* memory) { std::free(memory); }

int ballast_detach(ballast_session* session, double timeout,
                   ballast_error* error) {
  return Guarded(session, error, [&](Worker& worker) -> absl::Status {
    ASSIGN_OR_RETURN(const absl::Duration limit, Timeout(timeout));
    return worker.Detach(limit);
  });
}

int ballast_close(ballast_session* session, double timeout,
                  ballast_error* error) {
  return Guarded(session, error, [&](Worker& worker) -> absl::Status {
    ASSIGN_OR_RETURN(const absl::Duration limit, Timeout(timeout));
    return worker.Close(limit);
  });
}

void ballast_release(ballast_session* session) {
  // In a forked child it is the parent's.
  if (session == nullptr || session->creator_pid != getpid()) return;
  std::unique_ptr<ballast_session>(session).reset();
}

}  // extern "C"
