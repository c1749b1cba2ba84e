#include "server/daemon/signals.h"

#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

#include "server/base/errno_status.h"
#include "server/base/status_macros.h"

namespace ballast::daemon {
namespace {

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

void Signals::Block() {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

Signals::Signals(base::EventLoop* loop, base::UniqueFd fd,
                 absl::AnyInvocable<void(int)> on_signal)
    : loop_(loop), fd_(std::move(fd)), on_signal_(std::move(on_signal)) {}

absl::StatusOr<std::unique_ptr<Signals>> Signals::Create(
    base::EventLoop* loop, absl::AnyInvocable<void(int)> on_signal) {
  const sigset_t set = StopSignals();
  base::UniqueFd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return base::ErrnoStatus(errno, "signalfd");
  const int raw = fd.get();
  auto signals = std::unique_ptr<Signals>(
      new Signals(loop, std::move(fd), std::move(on_signal)));
  RETURN_IF_ERROR(loop->WatchFd(
      raw, EPOLLIN, [self = signals.get()](uint32_t) { self->OnReadable(); }));
  return signals;
}

Signals::~Signals() { loop_->UnwatchFd(fd_.get()); }

void Signals::OnReadable() {
  signalfd_siginfo info;
  while (read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
    on_signal_(static_cast<int>(info.ssi_signo));
  }
}

}  // namespace ballast::daemon
