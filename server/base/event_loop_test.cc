#include "server/base/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::base {
namespace {

class FakeClock final : public Clock {
 public:
  absl::Time Now() const override { return now; }
  absl::Time now = absl::UnixEpoch();
};

class EventLoopTest : public ::testing::Test {
 protected:
  void Turn() { loop_->RunOnce(absl::ZeroDuration()); }
  static UniqueFd ReadyFd() { return UniqueFd(eventfd(1, EFD_CLOEXEC)); }

  FakeClock clock_;
  std::unique_ptr<EventLoop> loop_ = EventLoop::Create(&clock_).value();
};

TEST_F(EventLoopTest, RunsPostedFunctionsInOrder) {
  std::string order;
  loop_->Post([&] {
    order += 'a';
    loop_->Post([&] { order += 'c'; });
  });
  loop_->Post([&] { order += 'b'; });
  Turn();
  EXPECT_EQ(order, "ab");
  Turn();
  EXPECT_EQ(order, "abc");
}

TEST_F(EventLoopTest, TakesPostsFromOtherThreads) {
  constexpr int kThreads = 4;
  constexpr int kPosts = 1000;
  int count = 0;  // control thread only: the sanitizer checks it
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < kPosts; ++j) {
        loop_->Post([&] {
          if (++count == kThreads * kPosts) loop_->Stop();
        });
      }
    });
  }
  loop_->Run();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, kThreads * kPosts);
}

TEST_F(EventLoopTest, StopDropsWhatIsQueued) {
  bool has_run = false;
  loop_->Post([&] { loop_->Stop(); });
  loop_->Post([&] { has_run = true; });
  loop_->Run();
  EXPECT_FALSE(has_run);
}

TEST_F(EventLoopTest, TimersFollowTheClock) {
  std::string order;
  loop_->PostAfter(absl::Seconds(2), [&] { order += 'b'; });
  loop_->PostAfter(absl::Seconds(1), [&] { order += 'a'; });
  const TimerId cancelled =
      loop_->PostAfter(absl::Seconds(1), [&] { order += 'x'; });
  loop_->Cancel(cancelled);
  loop_->Cancel(cancelled);
  Turn();
  EXPECT_EQ(order, "");
  clock_.now += absl::Seconds(1);
  Turn();
  EXPECT_EQ(order, "a");
  clock_.now += absl::Seconds(5);
  Turn();
  EXPECT_EQ(order, "ab");
}

TEST_F(EventLoopTest, ATimerCancelsAnotherThatIsDue) {
  std::string order;
  TimerId second = 0;
  loop_->PostAfter(absl::ZeroDuration(), [&] {
    order += 'a';
    loop_->Cancel(second);
  });
  second = loop_->PostAfter(absl::ZeroDuration(), [&] { order += 'b'; });
  Turn();
  Turn();
  EXPECT_EQ(order, "a");
}

TEST_F(EventLoopTest, ATimerThatRenewsItselfStarvesNobody) {
  int count = 0;
  absl::AnyInvocable<void()> renew = [&] {
    ++count;
    loop_->PostAfter(absl::ZeroDuration(), [&] { renew(); });
  };
  loop_->PostAfter(absl::ZeroDuration(), [&] { renew(); });
  Turn();
  EXPECT_EQ(count, 1);
  Turn();
  EXPECT_EQ(count, 2);
}

TEST_F(EventLoopTest, ReportsFdEvents) {
  UniqueFd fd = ReadyFd();
  int count = 0;
  ASSERT_THAT(loop_->WatchFd(fd.get(), EPOLLIN,
                             [&](uint32_t events) {
                               EXPECT_EQ(events, EPOLLIN);
                               ++count;
                             }),
              IsOk());
  EXPECT_THAT(loop_->WatchFd(fd.get(), EPOLLIN, [](uint32_t) {}),
              StatusIs(absl::StatusCode::kAlreadyExists));
  Turn();
  Turn();
  EXPECT_EQ(count, 2) << "level-triggered";
  ASSERT_THAT(loop_->ModifyFd(fd.get(), 0), IsOk());
  Turn();
  EXPECT_EQ(count, 2);
  loop_->UnwatchFd(fd.get());
  loop_->UnwatchFd(fd.get());
  EXPECT_THAT(loop_->ModifyFd(fd.get(), EPOLLIN),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(EventLoopTest, ACallbackUnwatchesItselfAndKeepsItsState) {
  UniqueFd fd = ReadyFd();
  auto text = std::make_unique<std::string>("still here");
  std::string seen;
  ASSERT_THAT(loop_->WatchFd(fd.get(), EPOLLIN,
                             [&, text = std::move(text)](uint32_t) {
                               loop_->UnwatchFd(fd.get());
                               seen = *text;
                             }),
              IsOk());
  Turn();
  Turn();
  EXPECT_EQ(seen, "still here");
}

// Both are ready in one turn; whichever runs first unwatches and closes the
// other and reuses its number.
TEST_F(EventLoopTest, AnUnwatchedFdGetsNoStaleEvent) {
  UniqueFd fds[2] = {ReadyFd(), ReadyFd()};
  int old_calls = 0;
  int new_calls = 0;
  for (int i = 0; i < 2; ++i) {
    ASSERT_THAT(
        loop_->WatchFd(fds[i].get(), EPOLLIN,
                       [&, i](uint32_t) {
                         if (++old_calls > 1) return;
                         UniqueFd& other = fds[1 - i];
                         loop_->UnwatchFd(other.get());
                         other.Reset();
                         other = UniqueFd(eventfd(0, EFD_CLOEXEC));
                         ASSERT_THAT(
                             loop_->WatchFd(other.get(), EPOLLIN,
                                            [&](uint32_t) { ++new_calls; }),
                             IsOk());
                         loop_->UnwatchFd(fds[i].get());
                       }),
        IsOk());
  }
  Turn();
  Turn();
  EXPECT_EQ(old_calls, 1);
  EXPECT_EQ(new_calls, 0);
}

TEST_F(EventLoopTest, ReportsAClosedPeer) {
  int raw[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, raw), 0);
  UniqueFd here(raw[0]);
  UniqueFd there(raw[1]);
  uint32_t events = 0;
  ASSERT_THAT(
      loop_->WatchFd(here.get(), 0, [&](uint32_t got) { events = got; }),
      IsOk());
  there.Reset();
  Turn();
  EXPECT_TRUE(events & EPOLLHUP);
}

TEST_F(EventLoopTest, RefusesAnFdThatCannotBeWatched) {
  EXPECT_FALSE(loop_->WatchFd(-1, EPOLLIN, [](uint32_t) {}).ok());
}

}  // namespace
}  // namespace ballast::base
