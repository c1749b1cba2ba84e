// The control thread of a process: epoll, an eventfd for Post, timers on an
// injected clock.
//
// Threading: Post and Stop from any thread; all else on the control thread,
// which is the thread inside Run(), or before Run() the one that will call it.
//
//   ASSIGN_OR_RETURN(auto loop, EventLoop::Create(&clock));
//   RETURN_IF_ERROR(loop->WatchFd(fd, EPOLLIN, [&](uint32_t) { Read(); }));
//   loop->Run();
#ifndef SERVER_BASE_EVENT_LOOP_H_
#define SERVER_BASE_EVENT_LOOP_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/executor.h"
#include "server/base/mutex.h"
#include "server/base/unique_fd.h"

namespace ballast::base {

class EventLoop final : public Executor {
 public:
  using FdCallback = absl::AnyInvocable<void(uint32_t epoll_events)>;

  // `clock` must outlive the loop.
  static absl::StatusOr<std::unique_ptr<EventLoop>> Create(const Clock* clock);
  ~EventLoop() override;

  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Runs until Stop(). What is queued or due after that is dropped.
  void Run();

  // Makes Run() return after the function that runs now; or at once, if it is
  // called later.
  void Stop();

  // One turn: waits at most `max_wait` for something to do and does it.
  void RunOnce(absl::Duration max_wait);

  void Post(absl::AnyInvocable<void() &&> fn) override;
  TimerId PostAfter(absl::Duration delay,
                    absl::AnyInvocable<void() &&> fn) override;
  void Cancel(TimerId timer) override;

  // Calls `callback` while any of `epoll_events` (level-triggered; EPOLLERR and
  // EPOLLHUP always count) holds for `fd`. The fd stays the caller's; it must
  // be unwatched before it is closed. AlreadyExists if it is watched.
  absl::Status WatchFd(int fd, uint32_t epoll_events, FdCallback callback);

  // Changes the events of a watched fd.
  absl::Status ModifyFd(int fd, uint32_t epoll_events);

  // Once it returns the callback is not called again, not even for events that
  // were already fetched; allowed inside any callback, also the fd's own. An
  // fd that is not watched is ignored.
  void UnwatchFd(int fd);

 private:
  // Events carry a watch's id, not its fd: an fd number that is closed and
  // reused within one turn cannot get the old one's events.
  struct Watch {
    uint64_t id;
    int fd;
    FdCallback callback;
  };
  using TimerKey = std::pair<absl::Time, TimerId>;

  EventLoop(const Clock* clock, UniqueFd epoll, UniqueFd wake);

  absl::Duration UntilNextTimer() const;
  void Wake();
  void DrainWake();
  void RunTimers();
  void RunPosted();
  void Dispatch(uint64_t watch_id, uint32_t epoll_events);

  const Clock* const clock_;
  const UniqueFd epoll_;
  const UniqueFd wake_;
  std::atomic<bool> stopping_{false};
  uint64_t next_id_ = 1;
  absl::flat_hash_map<int, uint64_t> watch_ids_;  // by fd
  absl::flat_hash_map<uint64_t, std::unique_ptr<Watch>> watches_;
  // Unwatched in this turn: one of them may be the callback that runs.
  std::vector<std::unique_ptr<Watch>> retired_;
  absl::btree_map<TimerKey, absl::AnyInvocable<void() &&>> timers_;
  absl::flat_hash_map<TimerId, absl::Time> timer_times_;
  std::vector<absl::AnyInvocable<void() &&>> running_;

  Mutex mutex_;
  std::vector<absl::AnyInvocable<void() &&>> posted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast::base

#endif  // SERVER_BASE_EVENT_LOOP_H_
