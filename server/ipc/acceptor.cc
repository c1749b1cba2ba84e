#include "server/ipc/acceptor.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/time/time.h"
#include "server/base/status_macros.h"

namespace ballast::ipc {
namespace {

constexpr int kMaxAcceptsPerTurn = 16;
// After the process ran out of descriptors: level-triggered events would spin.
constexpr absl::Duration kPause = absl::Milliseconds(100);

}  // namespace

Acceptor::Acceptor(base::EventLoop* loop, OnSocket on_socket)
    : loop_(loop), on_socket_(std::move(on_socket)) {}

absl::Status Acceptor::Start(int listener) {
  RETURN_IF_ERROR(
      loop_->WatchFd(listener, EPOLLIN, [this](uint32_t) { OnAcceptable(); }));
  listener_ = listener;
  return absl::OkStatus();
}

void Acceptor::Stop() {
  loop_->Cancel(std::exchange(resume_timer_, 0));
  if (listener_ >= 0) loop_->UnwatchFd(std::exchange(listener_, -1));
}

void Acceptor::Pause() {
  const int listener = listener_;
  Stop();
  resume_timer_ = loop_->PostAfter(kPause, [this, listener] {
    resume_timer_ = 0;
    if (Start(listener).ok()) return;
    listener_ = listener;
    Pause();
  });
}

void Acceptor::OnAcceptable() {
  for (int i = 0; i < kMaxAcceptsPerTurn && listener_ >= 0; ++i) {
    base::UniqueFd socket(
        accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      on_socket_(std::move(socket));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
        errno == ENOBUFS) {
      return Pause();
    }
    // EAGAIN: all taken. Others are the fate of one connection.
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
  }
}

}  // namespace ballast::ipc
