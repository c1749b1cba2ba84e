#include "server/base/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "server/base/errno_status.h"

namespace ballast::base {
namespace {

constexpr uint64_t kWakeId = 0;  // of no watch
constexpr int kMaxEventsPerTurn = 64;
constexpr absl::Duration kMaxWait = absl::Seconds(60);

// Rounded up: a timer that is woken early would spin for a millisecond.
int ToEpollTimeout(absl::Duration wait) {
  wait = std::clamp(wait, absl::ZeroDuration(), kMaxWait);
  return static_cast<int>(
      absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1))));
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Create(
    const Clock* clock) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return ErrnoStatus(errno, "epoll_create1");
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return ErrnoStatus(errno, "eventfd");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeId;
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) < 0) {
    return ErrnoStatus(errno, "epoll_ctl");
  }
  return std::unique_ptr<EventLoop>(
      new EventLoop(clock, std::move(epoll), std::move(wake)));
}

EventLoop::EventLoop(const Clock* clock, UniqueFd epoll, UniqueFd wake)
    : clock_(clock), epoll_(std::move(epoll)), wake_(std::move(wake)) {}

EventLoop::~EventLoop() {
  // What the functions own may cancel and unwatch while it goes: take them out
  // of the containers first.
  const auto timers = std::exchange(timers_, {});
  const auto watches = std::exchange(watches_, {});
  const auto retired = std::exchange(retired_, {});
  std::vector<absl::AnyInvocable<void() &&>> posted;
  {
    MutexLock lock(&mutex_);
    posted.swap(posted_);
  }
}

void EventLoop::Run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    RunOnce(absl::InfiniteDuration());
  }
}

void EventLoop::Stop() {
  stopping_.store(true, std::memory_order_release);
  Wake();
}

void EventLoop::RunOnce(absl::Duration max_wait) {
  std::array<epoll_event, kMaxEventsPerTurn> events;
  const int timeout = ToEpollTimeout(std::min(max_wait, UntilNextTimer()));
  // EINTR comes as -1: a turn without events.
  const int num_events =
      epoll_wait(epoll_.get(), events.data(), events.size(), timeout);
  for (int i = 0; i < num_events; ++i) {
    if (stopping_.load(std::memory_order_acquire)) break;
    if (events[i].data.u64 == kWakeId) {
      DrainWake();
    } else {
      Dispatch(events[i].data.u64, events[i].events);
    }
  }
  RunTimers();
  RunPosted();
  // What a retired callback owns may unwatch more while it goes.
  std::exchange(retired_, {}).clear();
}

void EventLoop::Dispatch(uint64_t watch_id, uint32_t epoll_events) {
  const auto it = watches_.find(watch_id);
  if (it == watches_.end()) return;  // unwatched earlier in this turn
  // The callback may unwatch itself; retired_ keeps it alive then.
  it->second->callback(epoll_events);
}

absl::Duration EventLoop::UntilNextTimer() const {
  if (timers_.empty()) return absl::InfiniteDuration();
  return timers_.begin()->first.first - clock_->Now();
}

void EventLoop::RunTimers() {
  // Timers that a timer sets wait for the next turn, also those due at once:
  // no timer can starve the file descriptors.
  const TimerKey last{clock_->Now(), next_id_};
  while (!timers_.empty() && timers_.begin()->first < last) {
    if (stopping_.load(std::memory_order_acquire)) return;
    const TimerId id = timers_.begin()->first.second;
    absl::AnyInvocable<void()&&> fn = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    timer_times_.erase(id);
    std::move(fn)();
  }
}

void EventLoop::RunPosted() {
  {
    MutexLock lock(&mutex_);
    running_.swap(posted_);
  }
  for (auto& fn : running_) {
    if (stopping_.load(std::memory_order_acquire)) break;
    std::move(fn)();
  }
  running_.clear();
}

void EventLoop::Post(absl::AnyInvocable<void() &&> fn) {
  bool was_empty;
  {
    MutexLock lock(&mutex_);
    was_empty = posted_.empty();
    posted_.push_back(std::move(fn));
  }
  // Otherwise the wake of the first one is still to be taken: RunPosted swaps
  // the vector after the eventfd was drained.
  if (was_empty) Wake();
}

void EventLoop::Wake() {
  const uint64_t one = 1;
  // Fails only if the counter is full, and then the loop is awake.
  [[maybe_unused]] const ssize_t written =
      write(wake_.get(), &one, sizeof(one));
}

void EventLoop::DrainWake() {
  uint64_t count;
  [[maybe_unused]] const ssize_t size =
      read(wake_.get(), &count, sizeof(count));
}

TimerId EventLoop::PostAfter(absl::Duration delay,
                             absl::AnyInvocable<void() &&> fn) {
  const TimerId id = next_id_++;
  const absl::Time time = clock_->Now() + std::max(delay, absl::ZeroDuration());
  timers_.emplace(TimerKey{time, id}, std::move(fn));
  timer_times_.emplace(id, time);
  return id;
}

void EventLoop::Cancel(TimerId timer) {
  const auto it = timer_times_.find(timer);
  if (it == timer_times_.end()) return;
  timers_.erase(TimerKey{it->second, timer});
  timer_times_.erase(it);
}

absl::Status EventLoop::WatchFd(int fd, uint32_t epoll_events,
                                FdCallback callback) {
  if (watch_ids_.contains(fd)) {
    return absl::AlreadyExistsError(
        absl::StrCat("fd ", fd, " is already watched"));
  }
  const uint64_t id = next_id_++;
  epoll_event event{};
  event.events = epoll_events;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) < 0) {
    return ErrnoStatus(errno, absl::StrCat("watch fd ", fd));
  }
  watch_ids_.emplace(fd, id);
  watches_.emplace(id,
                   std::make_unique<Watch>(Watch{id, fd, std::move(callback)}));
  return absl::OkStatus();
}

absl::Status EventLoop::ModifyFd(int fd, uint32_t epoll_events) {
  const auto it = watch_ids_.find(fd);
  if (it == watch_ids_.end()) {
    return absl::NotFoundError(absl::StrCat("fd ", fd, " is not watched"));
  }
  epoll_event event{};
  event.events = epoll_events;
  event.data.u64 = it->second;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) < 0) {
    return ErrnoStatus(errno, absl::StrCat("modify watch of fd ", fd));
  }
  return absl::OkStatus();
}

void EventLoop::UnwatchFd(int fd) {
  const auto it = watch_ids_.find(fd);
  if (it == watch_ids_.end()) return;
  const auto watch = watches_.find(it->second);
  retired_.push_back(std::move(watch->second));
  watches_.erase(watch);
  watch_ids_.erase(it);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

}  // namespace ballast::base
