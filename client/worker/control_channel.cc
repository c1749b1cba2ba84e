#include "client/worker/control_channel.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>

#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "proto/handle_socket.h"
#include "server/base/errno_status.h"

namespace ballast::worker {
namespace {

using Stub = v1::WorkerService::Stub;

constexpr int kMaxMessageBytes = 32 << 20;
constexpr absl::Duration kSlice = absl::Milliseconds(100);
constexpr int kEndLimitMs = 1000;

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
}

std::chrono::system_clock::time_point In(absl::Duration duration) {
  return std::chrono::system_clock::now() +
         absl::ToChronoMicroseconds(duration);
}

// One call, waited for in slices.
template <typename Request, typename Reply, typename Prepare>
absl::StatusOr<Reply> Call(Stub* stub, Prepare prepare, const Request& request,
                           const std::string& key, absl::Duration timeout,
                           const Interrupted& interrupted) {
  grpc::ClientContext context;
  context.AddMetadata(proto::kKeyMetadata, key);
  context.set_deadline(In(timeout));
  grpc::CompletionQueue queue;
  auto call = (stub->*prepare)(&context, request, &queue);
  call->StartCall();
  Reply reply;
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  bool is_cancelled = false;
  while (queue.AsyncNext(&tag, &ok, In(kSlice)) ==
         grpc::CompletionQueue::TIMEOUT) {
    if (is_cancelled || !interrupted || !interrupted()) continue;
    context.TryCancel();
    is_cancelled = true;
  }
  queue.Shutdown();
  if (is_cancelled) return absl::CancelledError("interrupted");
  if (!status.ok()) return FromGrpc(status);
  return reply;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlChannel>> ControlChannel::Create(
    base::UniqueFd fd, std::string key_hex) {
  const int flags = fcntl(fd.get(), F_GETFL);
  if (flags < 0 || fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) < 0) {
    return base::ErrnoStatus(errno, "control connection");
  }
  base::UniqueFd socket(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!socket) return base::ErrnoStatus(errno, "control connection");
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  auto channel = grpc::CreateCustomInsecureChannelFromFd(
      "ballast", fd.Release(), arguments);
  std::unique_ptr<ControlChannel> result(new ControlChannel());
  result->stub_ = v1::WorkerService::NewStub(channel);
  result->socket_ = std::move(socket);
  result->key_hex_ = std::move(key_hex);
  return result;
}

absl::StatusOr<v1::AttachReply> ControlChannel::Attach(
    const v1::AttachRequest& request, absl::Duration timeout,
    const Interrupted& interrupted) {
  return Call<v1::AttachRequest, v1::AttachReply>(
      stub_.get(), &Stub::PrepareAsyncAttach, request, key_hex_, timeout,
      interrupted);
}

absl::StatusOr<v1::BeginReply> ControlChannel::Begin(
    absl::Duration timeout, const Interrupted& interrupted) {
  return Call<v1::BeginRequest, v1::BeginReply>(
      stub_.get(), &Stub::PrepareAsyncBegin, v1::BeginRequest(), key_hex_,
      timeout, interrupted);
}

absl::StatusOr<v1::GetStatsReply> ControlChannel::GetStats(
    absl::Duration timeout) {
  return Call<v1::GetStatsRequest, v1::GetStatsReply>(
      stub_.get(), &Stub::PrepareAsyncGetStats, v1::GetStatsRequest(), key_hex_,
      timeout, nullptr);
}

absl::StatusOr<v1::SaveReply> ControlChannel::Save(
    const v1::SaveRequest& request, absl::Duration timeout,
    const Interrupted& interrupted) {
  return Call<v1::SaveRequest, v1::SaveReply>(stub_.get(),
                                              &Stub::PrepareAsyncSave, request,
                                              key_hex_, timeout, interrupted);
}

absl::Status ControlChannel::Detach(absl::Duration timeout) {
  return Call<v1::DetachRequest, v1::DetachReply>(
             stub_.get(), &Stub::PrepareAsyncDetach, v1::DetachRequest(),
             key_hex_, timeout, nullptr)
      .status();
}

bool ControlChannel::IsBroken(const absl::Status& error) const {
  if (!absl::IsUnavailable(error) && !absl::IsCancelled(error)) return false;
  // A channel that was made of a descriptor has no state of its own to ask for.
  pollfd poll_fd{socket_.get(), POLLRDHUP, 0};
  return poll(&poll_fd, 1, kEndLimitMs) > 0;
}

absl::Status ControlChannel::Close(absl::Duration timeout) {
  return Call<v1::CloseRequest, v1::CloseReply>(
             stub_.get(), &Stub::PrepareAsyncClose, v1::CloseRequest(),
             key_hex_, timeout, nullptr)
      .status();
}

}  // namespace ballast::worker
