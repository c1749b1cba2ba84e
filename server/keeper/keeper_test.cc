// Both ends over a real socket, on one loop.
#include "server/keeper/keeper.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "proto/keeper_socket.h"
#include "server/base/clock.h"
#include "server/base/event_loop.h"
#include "server/base/segment.h"
#include "server/base/status_matchers.h"
#include "server/base/unique_fd.h"
#include "server/ipc/fd_passing.h"
#include "server/ipc/keeper_client.h"
#include "server/ipc/keeper_message.h"
#include "server/ipc/socket_path.h"

namespace ballast::keeper {
namespace {

using base::IsOk;
using ipc::KeeperClient;

// A keeper as a process would be: on a loop and a thread of its own.
class RunningKeeper {
 public:
  explicit RunningKeeper(Keeper::Options options)
      : loop_(*base::EventLoop::Create(&clock_)) {
    options.on_idle = [this] {
      is_idle_ = true;
      loop_->Stop();
    };
    auto keeper = Keeper::Create(std::move(options), loop_.get());
    EXPECT_THAT(keeper.status(), IsOk());
    keeper_ = *std::move(keeper);
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~RunningKeeper() { Stop(); }

  void Stop() {
    if (!thread_.joinable()) return;
    loop_->Stop();
    thread_.join();
    num_items_ = keeper_->num_items();
    num_fds_ = keeper_->num_fds();
    keeper_.reset();
  }
  void Join() {
    thread_.join();
    keeper_.reset();
  }
  void Post(absl::AnyInvocable<void() &&> fn) { loop_->Post(std::move(fn)); }
  int num_items() const { return num_items_; }
  int num_fds() const { return num_fds_; }
  bool is_idle() const { return is_idle_; }

 private:
  base::MonotonicClock clock_;
  std::unique_ptr<base::EventLoop> loop_;
  std::unique_ptr<Keeper> keeper_;
  std::thread thread_;
  int num_items_ = -1;
  int num_fds_ = -1;
  bool is_idle_ = false;
};

class KeeperTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ballast_test_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    options_.path = directory_ + "/keeper.sock";
    loop_ = *base::EventLoop::Create(&clock_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Start() {
    keeper_ = std::make_unique<RunningKeeper>(std::move(options_));
    options_ = {};
    options_.path = directory_ + "/keeper.sock";
  }
  absl::StatusOr<std::unique_ptr<KeeperClient>> Connect(
      absl::Duration timeout = absl::Seconds(20)) {
    return KeeperClient::Connect(
        {.path = directory_ + "/keeper.sock",
         .timeout = timeout,
         .warn = [this](const std::string& line) { warnings_ += line + "\n"; },
         .on_refusal =
             [this](const std::string& name, const absl::Status& why) {
               refusals_ += absl::StrCat(
                   name, " ", absl::StatusCodeToString(why.code()), "\n");
             }},
        loop_.get());
  }
  // Until `done`, or for 20 s.
  template <typename Done>
  void RunUntil(const Done& done) {
    for (int i = 0; i < 2000 && !done(); ++i) {
      loop_->RunOnce(absl::Milliseconds(10));
    }
    EXPECT_TRUE(done());
  }

  base::MonotonicClock clock_;
  std::string directory_;
  Keeper::Options options_;
  std::unique_ptr<base::EventLoop> loop_;
  std::unique_ptr<RunningKeeper> keeper_;
  std::string warnings_;
  std::string refusals_;  // "NAME CODE", one a line
};

base::Segment SegmentOf(char value) {
  auto segment = base::Segment::Create("test", 4096);
  segment->bytes()[0] = std::byte(value);
  return *std::move(segment);
}

char FirstByteOf(base::Kept& item) {
  auto segment =
      base::Segment::Map(std::move(item.fds[0]), 4096, base::Access::kReadOnly);
  return segment.ok() ? static_cast<char>(segment->bytes()[0]) : '?';
}

TEST_F(KeeperTest, HandsOverToTheNextDaemon) {
  Start();
  {
    auto first = Connect();
    ASSERT_THAT(first, IsOk());
    EXPECT_TRUE((*first)->Found()->empty());
    for (const char name : std::string("abc")) {
      const base::Segment segment = SegmentOf(name);
      const int fd = segment.fd();
      EXPECT_THAT((*first)->Put(std::string(1, name),
                                absl::StrCat("note of ", std::string(1, name)),
                                std::span(&fd, 1)),
                  IsOk());
    }
    (*first)->Remove("b");
    (*first)->Remove("never there");
    RunUntil([&] { return (*first)->is_flushed(); });
  }  // killed
  auto next = Connect();
  ASSERT_THAT(next, IsOk());
  auto found = (*next)->Found();
  ASSERT_THAT(found, IsOk());
  ASSERT_EQ(found->size(), 2);
  EXPECT_EQ((*found)[0].name, "a");
  EXPECT_EQ((*found)[0].note, "note of a");
  EXPECT_EQ(FirstByteOf((*found)[0]), 'a');
  EXPECT_EQ((*found)[1].name, "c");
  EXPECT_EQ(FirstByteOf((*found)[1]), 'c');
}

TEST_F(KeeperTest, KeepsWhatReplacesAnother) {
  Start();
  {
    auto first = Connect();
    for (const char value : std::string("xyz")) {
      const base::Segment segment = SegmentOf(value);
      const int fds[] = {segment.fd(), segment.fd()};
      EXPECT_THAT((*first)->Put("same", "", fds), IsOk());
    }
    RunUntil([&] { return (*first)->is_flushed(); });
  }
  auto next = Connect();
  auto found = (*next)->Found();
  ASSERT_EQ(found->size(), 1);
  EXPECT_EQ((*found)[0].fds.size(), 2);
  EXPECT_EQ(FirstByteOf((*found)[0]), 'z');
  keeper_->Stop();
  EXPECT_EQ(keeper_->num_fds(), 2);
}

// More than the sockets' buffers hold, both ways.
TEST_F(KeeperTest, ManyAreHandedOver) {
  Start();
  const base::Segment segment = SegmentOf('m');
  const int fd = segment.fd();
  constexpr int kMany = 600;
  {
    auto first = Connect();
    for (int i = 0; i < kMany; ++i) {
      EXPECT_THAT((*first)->Put(absl::StrCat("name-", i),
                                std::string(3000, 'n'), std::span(&fd, 1)),
                  IsOk());
    }
    RunUntil([&] { return (*first)->is_flushed(); });
  }
  auto next = Connect();
  ASSERT_THAT(next, IsOk());
  EXPECT_EQ((*next)->Found()->size(), kMany);
}

TEST_F(KeeperTest, ASecondDaemonIsRefused) {
  Start();
  auto first = Connect();
  ASSERT_THAT(first, IsOk());
  const auto second = Connect(absl::Seconds(1));
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status())) << second.status();
  EXPECT_TRUE(absl::StrContains(
      std::string(second.status().message()),
      absl::StrCat("a daemon (pid ", getpid(), ") is connected")));
  first->reset();
  EXPECT_THAT(Connect(), IsOk());
}

TEST_F(KeeperTest, ASecondKeeperIsRefused) {
  Start();
  options_.on_idle = [] {};
  const auto second = Keeper::Create(std::move(options_), loop_.get());
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status())) << second.status();
}

TEST_F(KeeperTest, NobodyThereIsSaid) {
  const auto client = Connect(absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsUnavailable(client.status())) << client.status();
}

TEST_F(KeeperTest, TooManyAreRefusedAndTold) {
  options_.max_fds = 2;
  Start();
  auto client = Connect();
  const base::Segment segment = SegmentOf('x');
  const int fd = segment.fd();
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_THAT((*client)->Put(name, "", std::span(&fd, 1)), IsOk());
  }
  RunUntil([&] { return (*client)->is_flushed(); });
  EXPECT_EQ(refusals_, "c RESOURCE_EXHAUSTED\n");
  EXPECT_TRUE((*client)->is_connected());
}

// What it does not hold is known, and offered until there is room.
TEST_F(KeeperTest, WhatIsRefusedIsKnownAndOfferedAgain) {
  options_.max_fds = 2;
  Start();
  auto client = Connect();
  const base::Segment segment = SegmentOf('x');
  const int fd = segment.fd();
  EXPECT_TRUE(absl::IsNotFound((*client)->CheckHeld("a")));
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_THAT((*client)->Put(name, "", std::span(&fd, 1)), IsOk());
  }
  RunUntil([&] { return (*client)->is_flushed(); });
  EXPECT_THAT((*client)->CheckHeld("a"), IsOk());
  EXPECT_THAT((*client)->CheckHeld("b"), IsOk());
  const absl::Status held = (*client)->CheckHeld("c");
  EXPECT_EQ(held.message(), "the keeper holds 2 descriptors, of 2 that it may");
  // Offered in vain: it is no news.
  const absl::Time until = clock_.Now() + absl::Milliseconds(1500);
  while (clock_.Now() < until) loop_->RunOnce(absl::Milliseconds(10));
  EXPECT_EQ(refusals_, "c RESOURCE_EXHAUSTED\n");
  EXPECT_FALSE((*client)->CheckHeld("c").ok());
  (*client)->Remove("a");
  RunUntil([&] { return (*client)->CheckHeld("c").ok(); });
  EXPECT_EQ(refusals_, "c RESOURCE_EXHAUSTED\nc OK\n");
  client->reset();
  auto next = Connect();
  ASSERT_EQ((*next)->Found()->size(), 2);
  EXPECT_EQ((*next)->Found()->back().name, "c");
}

TEST_F(KeeperTest, WithoutAKeeperNothingIsHeld) {
  Start();
  auto client = Connect();
  const base::Segment segment = SegmentOf('x');
  const int fd = segment.fd();
  EXPECT_THAT((*client)->Put("a", "", std::span(&fd, 1)), IsOk());
  EXPECT_THAT((*client)->CheckHeld("a"), IsOk());
  keeper_.reset();
  RunUntil([&] { return !(*client)->is_connected(); });
  EXPECT_TRUE(absl::IsUnavailable((*client)->CheckHeld("a")));
}

TEST_F(KeeperTest, BoundsAreChecked) {
  Start();
  auto client = Connect();
  const int fds[] = {0, 0, 0, 0, 0};
  const auto put = [&](size_t name, size_t note, size_t count) {
    return (*client)->Put(std::string(name, 'n'), std::string(note, 'n'),
                          std::span(fds).first(count));
  };
  for (const absl::Status& status :
       {put(0, 0, 1), put(256, 0, 1), put(1, 4097, 1), put(1, 0, 0),
        put(1, 0, 5)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
  EXPECT_THAT(put(255, 4096, 4), IsOk());
}

// The daemon keeps copies: the next keeper has all of it.
TEST_F(KeeperTest, AKeeperThatDiesIsReplaced) {
  Start();
  auto client = Connect();
  const base::Segment segment = SegmentOf('k');
  const int fd = segment.fd();
  EXPECT_THAT((*client)->Put("a", "", std::span(&fd, 1)), IsOk());
  keeper_.reset();
  RunUntil([&] { return !(*client)->is_connected(); });
  EXPECT_THAT((*client)->Put("b", "", std::span(&fd, 1)), IsOk());
  (*client)->Remove("a");
  EXPECT_FALSE((*client)->is_flushed());
  Start();
  RunUntil([&] { return (*client)->is_flushed(); });
  client->reset();
  auto next = Connect();
  ASSERT_EQ((*next)->Found()->size(), 1);
  EXPECT_EQ((*next)->Found()->front().name, "b");
  EXPECT_TRUE(absl::StrContains(warnings_, "keeper lost")) << warnings_;
}

// A daemon, word by word.
class RawDaemon {
 public:
  explicit RawDaemon(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path.c_str());
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address),
                      sizeof(address)),
              0);
  }
  void Say(const std::vector<std::byte>& bytes, std::vector<int> fds = {}) {
    EXPECT_THAT(ipc::SendPacket(socket_.get(), bytes, fds).status(), IsOk());
  }
  void Put(const std::string& name, int fd, int times = 1) {
    Say(ipc::ToBytes(proto::KeeperMessageKind::kPut, name),
        std::vector<int>(times, fd));
  }
  ipc::KeeperMessage Hear() {
    pollfd poll_fd{socket_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&poll_fd, 1, 20'000), 1);
    std::vector<std::byte> bytes(ipc::kMaxKeeperMessageBytes);
    ipc::Packet packet;
    EXPECT_THAT(ipc::ReceivePacket(socket_.get(), bytes, &packet).status(),
                IsOk());
    bytes.resize(packet.size);
    auto message = ipc::ParseKeeperMessage(bytes, std::move(packet));
    EXPECT_THAT(message.status(), IsOk());
    return message.ok() ? *std::move(message) : ipc::KeeperMessage();
  }

 private:
  base::UniqueFd socket_;
};

std::string NamesOf(const std::vector<base::Kept>& found) {
  std::string names;
  for (const base::Kept& item : found) names += item.name;
  return names;
}

// What a daemon had put is there until it has put all of it again.
TEST_F(KeeperTest, ADaemonThatComesBackAndDiesLosesNothing) {
  Start();
  const base::Segment segment = SegmentOf('m');
  for (const bool is_said : {false, true}) {
    {
      RawDaemon daemon(options_.path);
      for (const char* name : {"a", "b", "c"}) daemon.Put(name, segment.fd());
    }
    {
      RawDaemon again(options_.path);
      again.Say(ipc::ToBytes(proto::KeeperMessageKind::kReset, "", "",
                             proto::kResetMarks));
      EXPECT_EQ(again.Hear().kind, proto::KeeperMessageKind::kMarked);
      again.Put("b", segment.fd());
      if (is_said) {
        again.Say(ipc::ToBytes(proto::KeeperMessageKind::kSync));
        EXPECT_EQ(again.Hear().kind, proto::KeeperMessageKind::kSynced);
      }
    }
    auto next = Connect();
    ASSERT_THAT(next, IsOk());
    EXPECT_EQ(NamesOf(*(*next)->Found()), is_said ? "b" : "abc");
  }
  {
    RawDaemon older(options_.path);
    older.Say(ipc::ToBytes(proto::KeeperMessageKind::kReset));
    older.Put("d", segment.fd());
  }
  auto next = Connect();
  ASSERT_THAT(next, IsOk());
  EXPECT_EQ(NamesOf(*(*next)->Found()), "d");
}

TEST_F(KeeperTest, WhatCannotBeReplacedStays) {
  options_.max_fds = 2;
  Start();
  const base::Segment segment = SegmentOf('r');
  {
    RawDaemon daemon(options_.path);
    daemon.Put("a", segment.fd());
    daemon.Put("b", segment.fd());
    daemon.Put("a", segment.fd(), 2);
    EXPECT_EQ(daemon.Hear().name, "a");
    daemon.Put("b", segment.fd());  // in place of the other one
    daemon.Say(ipc::ToBytes(proto::KeeperMessageKind::kSync));
    EXPECT_EQ(daemon.Hear().kind, proto::KeeperMessageKind::kSynced);
  }
  auto next = Connect();
  ASSERT_THAT(next, IsOk());
  EXPECT_EQ(NamesOf(*(*next)->Found()), "ab");
}

// One that has no descriptor left refuses what it cannot take, and goes on.
TEST_F(KeeperTest, WhatThereIsNoDescriptorForIsRefused) {
  Start();
  const base::Segment segment = SegmentOf('e');
  RawDaemon daemon(options_.path);
  daemon.Put("a", segment.fd());
  daemon.Say(ipc::ToBytes(proto::KeeperMessageKind::kSync));
  EXPECT_EQ(daemon.Hear().kind, proto::KeeperMessageKind::kSynced);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = dup(segment.fd());  // the lowest that is free
  close(static_cast<int>(none.rlim_cur));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  daemon.Put("b", segment.fd());
  const ipc::KeeperMessage refusal = daemon.Hear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(refusal.kind, proto::KeeperMessageKind::kRefusal);
  EXPECT_EQ(refusal.name, "b");
  EXPECT_TRUE(absl::IsResourceExhausted(refusal.refusal)) << refusal.refusal;
  daemon.Put("b", segment.fd());
  daemon.Say(ipc::ToBytes(proto::KeeperMessageKind::kSync));
  EXPECT_EQ(daemon.Hear().kind, proto::KeeperMessageKind::kSynced);
}

// Of the calling thread: the kernel counts descriptors under way against the
// limit only without these.
void DropPrivileges() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  EXPECT_EQ(syscall(SYS_capset, &header, data), 0);
}

// More descriptors of this user are under way than its limit allows, until this
// is gone.
class Crowd {
 public:
  Crowd() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit few = before_;
    few.rlim_cur = 200;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    from_.Reset(ends[0]);
    to_.Reset(ends[1]);
    const std::vector<std::byte> byte(1);
    const std::vector<int> fds(4, ends[0]);
    // Some refuse what is beyond the limit, root is not.
    for (int i = 0; i < 60; ++i) {
      (void)ipc::SendPacket(from_.get(), byte, fds);
    }
  }
  ~Crowd() {
    to_.Reset();
    from_.Reset();
    setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  base::UniqueFd from_;
  base::UniqueFd to_;
};

TEST_F(KeeperTest, DescriptorsUnderWayOnlyDelayTheList) {
  Start();
  const base::Segment segment = SegmentOf('u');
  {
    RawDaemon daemon(options_.path);
    for (const char* name : {"a", "b", "c"}) daemon.Put(name, segment.fd());
    daemon.Say(ipc::ToBytes(proto::KeeperMessageKind::kSync));
    EXPECT_EQ(daemon.Hear().kind, proto::KeeperMessageKind::kSynced);
  }
  std::atomic<bool> has_dropped = false;
  keeper_->Post([&] {
    DropPrivileges();
    has_dropped = true;
  });
  RunUntil([&] { return has_dropped.load(); });
  auto crowd = std::make_unique<Crowd>();
  std::atomic<bool> is_over = false;
  std::thread others([&] {
    poll(nullptr, 0, 300);
    is_over = true;
    crowd.reset();
  });
  auto next = Connect();
  EXPECT_TRUE(is_over);
  others.join();
  ASSERT_THAT(next, IsOk());
  EXPECT_EQ(NamesOf(*(*next)->Found()), "abc");
}

// One of a version before this one answers neither Reset nor Sync.
TEST_F(KeeperTest, AnOlderKeeperIsGivenAllAgain) {
  Start();
  auto client = Connect();
  const base::Segment segment = SegmentOf('o');
  const int fd = segment.fd();
  for (const char* name : {"a", "b"}) {
    EXPECT_THAT((*client)->Put(name, "", std::span(&fd, 1)), IsOk());
  }
  RunUntil([&] { return (*client)->is_flushed(); });
  keeper_.reset();
  auto path =
      ipc::SocketPath::Listen(options_.path, SOCK_SEQPACKET, /*mode=*/0600);
  ASSERT_THAT(path.status(), IsOk());
  RunUntil([&] { return !(*client)->is_connected(); });
  (*client)->Remove("a");
  base::UniqueFd socket;
  RunUntil([&] {
    if (!socket) {
      socket.Reset(accept4(path->fd(), nullptr, nullptr, SOCK_CLOEXEC));
    }
    return static_cast<bool>(socket);
  });
  RunUntil([&] { return (*client)->is_flushed(); });
  for (const auto& [kind, name] :
       {std::pair(proto::KeeperMessageKind::kReset, ""),
        std::pair(proto::KeeperMessageKind::kRemove, "a"),
        std::pair(proto::KeeperMessageKind::kPut, "b")}) {
    std::vector<std::byte> bytes(ipc::kMaxKeeperMessageBytes);
    ipc::Packet packet;
    ASSERT_THAT(ipc::ReceivePacket(socket.get(), bytes, &packet).status(),
                IsOk());
    bytes.resize(packet.size);
    const auto message = ipc::ParseKeeperMessage(bytes, std::move(packet));
    ASSERT_THAT(message.status(), IsOk());
    EXPECT_EQ(message->kind, kind);
    EXPECT_EQ(message->name, name);
  }
}

// One that lets daemons in and then refuses them, whatever its reason.
TEST_F(KeeperTest, AKeeperThatTakesNobodyIsAskedNowAndThen) {
  Start();
  auto client = Connect();
  const base::Segment segment = SegmentOf('k');
  const int fd = segment.fd();
  EXPECT_THAT((*client)->Put("a", "", std::span(&fd, 1)), IsOk());
  keeper_.reset();
  auto path = ipc::SocketPath::Listen(directory_ + "/keeper.sock",
                                      SOCK_SEQPACKET, 0600);
  ASSERT_THAT(path.status(), IsOk());
  int asked = 0;
  const auto refuse = [&](uint32_t) {
    const base::UniqueFd socket(
        accept4(path->fd(), nullptr, nullptr, SOCK_CLOEXEC));
    asked += socket ? 1 : 0;
    EXPECT_THAT(ipc::SendPacket(
                    socket.get(),
                    ipc::RefusalBytes("", absl::InternalError("not you")), {})
                    .status(),
                IsOk());
  };
  ASSERT_THAT(loop_->WatchFd(path->fd(), EPOLLIN, refuse), IsOk());
  const absl::Time start = clock_.Now();
  while (clock_.Now() - start < absl::Milliseconds(2500)) {
    loop_->RunOnce(absl::Milliseconds(10));
    EXPECT_FALSE((*client)->is_flushed());
  }
  const int64_t seconds = absl::ToInt64Seconds(clock_.Now() - start);
  EXPECT_GT(asked, 0);
  EXPECT_LE(asked, seconds + 1);
  EXPECT_GE((*client)->num_lost(), asked);
  // One line for all of it.
  EXPECT_EQ(absl::StrReplaceAll(warnings_, {{"keeper lost", ""}}).size() + 11,
            warnings_.size())
      << warnings_;
  EXPECT_FALSE(absl::StrContains(warnings_, "keeper found")) << warnings_;
  loop_->UnwatchFd(path->fd());
}

TEST_F(KeeperTest, EndsOnceADaemonLeftNothing) {
  options_.linger = absl::Hours(1);
  Start();
  Connect()->reset();
  keeper_->Join();
  EXPECT_TRUE(keeper_->is_idle());
}

TEST_F(KeeperTest, EndsWhenNoDaemonComesForLong) {
  options_.linger = absl::Seconds(4);  // a daemon comes within it
  Start();
  {
    auto client = Connect();
    const base::Segment segment = SegmentOf('l');
    const int fd = segment.fd();
    EXPECT_THAT((*client)->Put("a", "", std::span(&fd, 1)), IsOk());
    RunUntil([&] { return (*client)->is_flushed(); });
  }
  keeper_->Join();
  EXPECT_TRUE(keeper_->is_idle());
}

// Whatever a peer of the same user sends, the keeper lives on (I26).
TEST_F(KeeperTest, NonsenseEndsItsConnectionOnly) {
  Start();
  {
    auto client = Connect();
    const base::Segment segment = SegmentOf('s');
    const int fd = segment.fd();
    EXPECT_THAT((*client)->Put("a", "", std::span(&fd, 1)), IsOk());
    RunUntil([&] { return (*client)->is_flushed(); });
  }
  proto::KeeperHeader lying = {.magic = proto::kKeeperMagic,
                               .version = proto::kKeeperVersion,
                               .kind = proto::KeeperMessageKind::kPut,
                               .code = 0,
                               .name_bytes = 0xffffffff,
                               .note_bytes = 0xffffffff};
  proto::KeeperHeader newer = lying;
  newer.version = 99;
  newer.name_bytes = newer.note_bytes = 0;
  proto::KeeperHeader unknown = newer;
  unknown.version = proto::kKeeperVersion;
  unknown.kind = static_cast<proto::KeeperMessageKind>(77);
  const auto bytes_of = [](const proto::KeeperHeader& header) {
    const auto* begin = reinterpret_cast<const std::byte*>(&header);
    return std::vector<std::byte>(begin, begin + sizeof(header));
  };
  for (const std::vector<std::byte>& bytes :
       {std::vector<std::byte>(1), std::vector<std::byte>(8000),
        bytes_of(lying), bytes_of(newer), bytes_of(unknown),
        // No descriptor, no name.
        ipc::ToBytes(proto::KeeperMessageKind::kPut, "a"),
        ipc::ToBytes(proto::KeeperMessageKind::kPut)}) {
    base::UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, (directory_ + "/keeper.sock").c_str());
    ASSERT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address),
                      sizeof(address)),
              0);
    ASSERT_EQ(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    // A refusal, and the end.
    std::byte buffer[ipc::kMaxKeeperMessageBytes];
    pollfd poll_fd{socket.get(), POLLIN, 0};
    ASSERT_EQ(poll(&poll_fd, 1, 20'000), 1);
    EXPECT_GT(recv(socket.get(), buffer, sizeof(buffer), 0), 0);
    ASSERT_EQ(poll(&poll_fd, 1, 20'000), 1);
    EXPECT_EQ(recv(socket.get(), buffer, sizeof(buffer), 0), 0);
  }
  auto next = Connect();
  ASSERT_THAT(next, IsOk());
  EXPECT_EQ((*next)->Found()->size(), 1);
}

}  // namespace
}  // namespace ballast::keeper
