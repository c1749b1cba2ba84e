#include "server/ipc/acceptor.h"

#include <stddef.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/base/clock.h"
#include "server/base/event_loop.h"
#include "server/base/status_matchers.h"
#include "server/base/unique_fd.h"

namespace ballast::ipc {
namespace {

using base::IsOk;

// An abstract address, which leaves no file.
class AcceptorTest : public testing::Test {
 protected:
  void SetUp() override {
    address_.sun_family = AF_UNIX;
    const std::string name = absl::StrCat("ballast-acceptor-test-", getpid());
    name.copy(address_.sun_path + 1, name.size());
    size_ = offsetof(sockaddr_un, sun_path) + 1 + name.size();
    listener_.Reset(Socket());
    ASSERT_EQ(bind(listener_.get(), address(), size_), 0);
    ASSERT_EQ(listen(listener_.get(), 16), 0);
    ASSERT_THAT(acceptor_.Start(listener_.get()), IsOk());
  }

  static int Socket() {
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  }
  const sockaddr* address() const {
    return reinterpret_cast<const sockaddr*>(&address_);
  }
  void Connect() {
    clients_.emplace_back(Socket());
    EXPECT_EQ(connect(clients_.back().get(), address(), size_), 0);
  }
  // Turns of the loop; those that found nothing to do wait.
  int RunFor(absl::Duration duration) {
    const absl::Time until = clock_.Now() + duration;
    int turns = 0;
    for (; clock_.Now() < until; ++turns) {
      loop_->RunOnce(absl::Milliseconds(10));
    }
    return turns;
  }
  void RunUntilTaken(size_t count) {
    for (int i = 0; i < 2000 && taken_.size() < count; ++i) {
      loop_->RunOnce(absl::Milliseconds(10));
    }
    EXPECT_EQ(taken_.size(), count);
  }

  base::MonotonicClock clock_;
  std::unique_ptr<base::EventLoop> loop_ = *base::EventLoop::Create(&clock_);
  sockaddr_un address_{};
  socklen_t size_ = 0;
  base::UniqueFd listener_;
  std::vector<base::UniqueFd> clients_;
  std::vector<base::UniqueFd> taken_;
  Acceptor acceptor_{loop_.get(), [this](base::UniqueFd socket) {
                       taken_.push_back(std::move(socket));
                     }};
};

TEST_F(AcceptorTest, TakesAll) {
  for (int i = 0; i < 16; ++i) Connect();
  RunUntilTaken(16);
  acceptor_.Stop();
  Connect();
  RunFor(absl::Milliseconds(50));
  EXPECT_EQ(taken_.size(), 16u);
  EXPECT_THAT(acceptor_.Start(listener_.get()), IsOk());
  RunUntilTaken(17);
}

TEST_F(AcceptorTest, WithoutDescriptorsItPausesAndGoesOn) {
  Connect();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = dup(listener_.get());  // the lowest that is free
  close(static_cast<int>(none.rlim_cur));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const int turns = RunFor(absl::Milliseconds(300));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(taken_.size(), 0u);
  EXPECT_LT(turns, 60);  // one that spins has thousands
  RunUntilTaken(1);
}

}  // namespace
}  // namespace ballast::ipc
