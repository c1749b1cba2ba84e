#include "server/ipc/handle_server.h"

#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "proto/handle_socket.h"
#include "server/base/clock.h"
#include "server/base/random.h"
#include "server/base/segment.h"
#include "server/base/status_matchers.h"
#include "server/ipc/fd_passing.h"
#include "server/ipc/handle_client.h"

namespace ballast::ipc {
namespace {

using base::IsOk;
using base::StatusIs;
using base::UniqueFd;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::Duration kLong = absl::Seconds(20);

class Daemon final : public WorkerAcceptor, public WorkerLinkObserver {
 public:
  void OnWorker(std::unique_ptr<WorkerLink> link,
                UniqueFd control_fd) override {
    links.push_back(std::move(link));
    links.back()->Start(this);
    control_fds.push_back(std::move(control_fd));
  }
  void OnRefused(const PeerIdentity&, const absl::Status& reason) override {
    refusals.push_back(reason);
  }
  void OnDoorbell(WorkerLink*) override { ++doorbells; }
  void OnLost(WorkerLink* link, const absl::Status& reason) override {
    losses.push_back(reason);
    std::erase_if(links, [&](const auto& l) { return l.get() == link; });
  }

  std::vector<std::unique_ptr<WorkerLink>> links;
  std::vector<UniqueFd> control_fds;
  std::vector<absl::Status> refusals;
  std::vector<absl::Status> losses;
  int doorbells = 0;
};

class HandleServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ballast_test_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    options_.path = directory_ + "/ballastd.sock";
    options_.hello_deadline = absl::Minutes(1);
  }
  void TearDown() override {
    server_.reset();
    daemon_.links.clear();
    std::filesystem::remove_all(directory_);
  }

  void StartServer() {
    MakeServer();
    ASSERT_THAT(server_->StartAccepting(), IsOk());
  }
  void MakeServer() {
    auto server = HandleServer::Create(
        options_, loop_.get(), &random_,
        [](const PeerIdentity& peer, std::string_view token) {
          EXPECT_EQ(peer.uid, getuid());
          return token == "secret" ? absl::OkStatus()
                                   : absl::PermissionDeniedError("wrong token");
        },
        &daemon_);
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
  }

  // Turns the loop until `done`; false after a long time.
  template <typename Done>
  bool TurnUntil(Done done) {
    const absl::Time deadline = clock_.Now() + kLong;
    while (!done()) {
      if (clock_.Now() > deadline) return false;
      loop_->RunOnce(absl::Milliseconds(10));
    }
    return true;
  }

  // The client blocks: it runs on a thread of its own while the loop turns.
  absl::StatusOr<std::unique_ptr<HandleClient>> Connect(
      std::string_view token = "secret") {
    absl::StatusOr<std::unique_ptr<HandleClient>> client =
        absl::UnknownError("");
    std::atomic<bool> is_done{false};
    std::thread thread([&] {
      client = HandleClient::Connect(options_.path, token, kLong);
      is_done = true;
    });
    EXPECT_TRUE(TurnUntil([&] { return is_done.load(); }));
    thread.join();
    return client;
  }

  // A connected socket that has said nothing.
  UniqueFd RawConnect() {
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, options_.path.data(), options_.path.size());
    EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address),
                      sizeof(address)),
              0);
    return socket;
  }

  static std::vector<std::byte> Hello(std::string_view token) {
    proto::HelloMessage hello{};
    hello.header = {proto::kHandleMagic, proto::HandleMessageKind::kHello};
    hello.version = proto::kHandleVersion;
    hello.token_bytes = static_cast<uint32_t>(token.size());
    std::vector<std::byte> bytes(sizeof(hello) + token.size());
    std::memcpy(bytes.data(), &hello, sizeof(hello));
    std::memcpy(bytes.data() + sizeof(hello), token.data(), token.size());
    return bytes;
  }
  static UniqueFd Pidfd(pid_t pid) {
    return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  }

  // Sends a first packet and expects a refusal with that code.
  void ExpectRefusal(std::span<const std::byte> bytes, std::span<const int> fds,
                     absl::StatusCode code, const std::string& text) {
    const size_t refused = daemon_.refusals.size();
    UniqueFd socket = RawConnect();
    ASSERT_THAT(SendPacket(socket.get(), bytes, fds), IsOk());
    ASSERT_TRUE(TurnUntil([&] { return daemon_.refusals.size() > refused; }));
    EXPECT_THAT(daemon_.refusals.back(), StatusIs(code, text));
    EXPECT_EQ(server_->num_pending(), 0);
    // The peer reads the reason, then the end.
    std::array<std::byte, 2048> buffer;
    Packet packet;
    ASSERT_THAT(ReceivePacket(socket.get(), buffer, &packet), IsOk());
    proto::RefusalMessage refusal;
    ASSERT_GE(packet.size, sizeof(refusal));
    std::memcpy(&refusal, buffer.data(), sizeof(refusal));
    EXPECT_EQ(refusal.code, static_cast<int>(code));
    ASSERT_THAT(ReceivePacket(socket.get(), buffer, &packet), IsOk());
    EXPECT_TRUE(packet.is_end);
  }

  base::MonotonicClock clock_;
  std::unique_ptr<base::EventLoop> loop_ =
      base::EventLoop::Create(&clock_).value();
  base::SeededRandom random_{1};
  std::string directory_;
  HandleServer::Options options_;
  Daemon daemon_;
  std::unique_ptr<HandleServer> server_;
};

TEST_F(HandleServerTest, WelcomesAWorkerWithAKeyAndAControlSocket) {
  StartServer();
  auto client = Connect();
  ASSERT_THAT(client, IsOk());
  auto second = Connect();
  ASSERT_THAT(second, IsOk());
  ASSERT_EQ(daemon_.links.size(), 2u);
  EXPECT_EQ((*client)->key(), daemon_.links[0]->key());
  EXPECT_NE((*client)->key(), (*second)->key());
  EXPECT_EQ(daemon_.links[0]->peer().pid, getpid());
  const UniqueFd control = (*client)->TakeControlFd();
  ASSERT_EQ(write(control.get(), "hi", 2), 2);
  char text[2];
  EXPECT_EQ(read(daemon_.control_fds[0].get(), text, 2), 2);
  EXPECT_TRUE((*client)->IsOpen());
}

TEST_F(HandleServerTest, LetsNobodyInBeforeItAccepts) {
  MakeServer();
  EXPECT_THAT(
      HandleClient::Connect(options_.path, "secret", absl::ZeroDuration()),
      StatusIs(absl::StatusCode::kUnavailable, options_.path));
  ASSERT_THAT(server_->StartAccepting(), IsOk());
  EXPECT_THAT(Connect(), IsOk());
}

TEST_F(HandleServerTest, AWrongTokenIsRefusedWithItsReason) {
  StartServer();
  EXPECT_THAT(Connect("guess"),
              StatusIs(absl::StatusCode::kPermissionDenied, "wrong token"));
  EXPECT_THAT(Connect(std::string(proto::kMaxTokenBytes, 'x')),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(Connect(std::string(proto::kMaxTokenBytes + 1, 'x')),
              StatusIs(kInvalid));
  EXPECT_TRUE(daemon_.links.empty());
  EXPECT_THAT(Connect(), IsOk()) << "others are not disturbed";
}

// I26
TEST_F(HandleServerTest, HostileHellosAreRefused) {
  StartServer();
  const UniqueFd self = Pidfd(getpid());
  const int pidfd[] = {self.get()};
  ExpectRefusal(std::vector<std::byte>(1), pidfd, kInvalid, "too short");
  ExpectRefusal(std::vector<std::byte>(sizeof(proto::HelloMessage)), pidfd,
                kInvalid, "not a Hello");
  ExpectRefusal(std::vector<std::byte>(20'000), pidfd, kInvalid, "too long");
  std::vector<std::byte> lying = Hello("secret");
  lying[12] = std::byte{0xff};  // token_bytes
  ExpectRefusal(lying, pidfd, kInvalid, "announces a token");
  std::vector<std::byte> future = Hello("secret");
  future[8] = std::byte{99};  // version
  ExpectRefusal(future, pidfd, absl::StatusCode::kFailedPrecondition,
                "version 99");
  ExpectRefusal(Hello("secret"), {}, kInvalid, "0 descriptors");
  const int two[] = {self.get(), self.get()};
  ExpectRefusal(Hello("secret"), two, kInvalid, "2 descriptors");
  const UniqueFd event(eventfd(0, 0));
  const int wrong[] = {event.get()};
  ExpectRefusal(Hello("secret"), wrong, kInvalid, "not a pidfd");
  EXPECT_TRUE(daemon_.links.empty());
}

// I26: a lease cannot be tied to somebody else's life.
TEST_F(HandleServerTest, APidfdOfAnotherProcessIsRefused) {
  StartServer();
  const UniqueFd parent = Pidfd(getppid());
  const int fds[] = {parent.get()};
  ExpectRefusal(Hello("secret"), fds, kInvalid, "pidfd is of process");
  const pid_t child = fork();
  if (child == 0) _exit(0);
  const UniqueFd dead = Pidfd(child);
  waitpid(child, nullptr, 0);
  const int dead_fds[] = {dead.get()};
  ExpectRefusal(Hello("secret"), dead_fds, kInvalid, "exited");
}

TEST_F(HandleServerTest, SilenceEndsAtTheDeadline) {
  options_.hello_deadline = absl::Milliseconds(1);
  StartServer();
  const UniqueFd socket = RawConnect();
  ASSERT_TRUE(TurnUntil([&] { return !daemon_.refusals.empty(); }));
  EXPECT_THAT(daemon_.refusals[0],
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(server_->num_pending(), 0);
}

// I26: who says nothing makes room for a worker, the oldest first.
TEST_F(HandleServerTest, SilentConnectionsAreBoundedAndLockNobodyOut) {
  options_.max_pending = 2;
  StartServer();
  std::vector<UniqueFd> sockets;
  for (int i = 0; i < 2; ++i) sockets.push_back(RawConnect());
  ASSERT_TRUE(TurnUntil([&] { return server_->num_pending() == 2; }));
  EXPECT_THAT(Connect(), IsOk());
  ASSERT_EQ(daemon_.refusals.size(), 1u);
  EXPECT_THAT(daemon_.refusals[0],
              StatusIs(absl::StatusCode::kResourceExhausted, "no Hello came"));
  EXPECT_EQ(server_->num_pending(), 1);
  // The oldest was told, the other still waits.
  std::array<std::byte, 2048> buffer;
  Packet packet;
  auto result = ReceivePacket(sockets[0].get(), buffer, &packet);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(*result, IoResult::kDone);
  result = ReceivePacket(sockets[1].get(), buffer, &packet);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(*result, IoResult::kWouldBlock);
  // However often it comes again, and how many there are.
  for (int i = 0; i < 40; ++i) sockets.push_back(RawConnect());
  EXPECT_THAT(Connect(), IsOk());
  EXPECT_LE(server_->num_pending(), 2);
}

TEST_F(HandleServerTest, HandsSegmentsOver) {
  StartServer();
  auto client = Connect();
  ASSERT_THAT(client, IsOk());
  auto segment = base::Segment::Create("test", 8192);
  ASSERT_THAT(segment, IsOk());
  WorkerLink& link = *daemon_.links[0];
  auto read_only = segment->OpenReadOnly();
  ASSERT_THAT(read_only, IsOk());
  ASSERT_THAT(
      link.SendSegment(proto::SegmentKind::kGradients, segment->fd(), 8192),
      IsOk());
  ASSERT_THAT(
      link.SendSegment(proto::SegmentKind::kWeights, read_only->get(), 8192),
      IsOk());
  auto gradients = (*client)->ReceiveSegment(kLong);
  ASSERT_THAT(gradients, IsOk());
  EXPECT_EQ(gradients->kind, proto::SegmentKind::kGradients);
  EXPECT_EQ(gradients->size_bytes, 8192u);
  auto mapped = base::Segment::Map(std::move(gradients->fd), 8192,
                                   base::Access::kReadWrite);
  ASSERT_THAT(mapped, IsOk());
  mapped->bytes()[3] = std::byte{9};
  EXPECT_EQ(segment->bytes()[3], std::byte{9});
  auto weights = (*client)->ReceiveSegment(kLong);
  ASSERT_THAT(weights, IsOk());
  EXPECT_FALSE(
      base::Segment::Map(std::move(weights->fd), 8192, base::Access::kReadWrite)
          .ok());
  EXPECT_THAT((*client)->ReceiveSegment(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

// I26: a worker that never reads costs a bounded queue, and never blocks.
TEST_F(HandleServerTest, AWorkerThatDoesNotReadIsBounded) {
  StartServer();
  auto client = Connect();
  ASSERT_THAT(client, IsOk());
  auto segment = base::Segment::Create("test", 4096);
  ASSERT_THAT(segment, IsOk());
  int sent = 0;
  absl::Status status;
  while (status.ok() && sent < 100'000) {
    status = daemon_.links[0]->SendSegment(proto::SegmentKind::kWeights,
                                           segment->fd(), 4096);
    if (status.ok()) ++sent;
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
  // What was accepted arrives, in order, once it reads.
  int received = 0;
  ASSERT_TRUE(TurnUntil([&] {
    if ((*client)->ReceiveSegment(absl::ZeroDuration()).ok()) ++received;
    return received == sent;
  }));
  EXPECT_THAT((*client)->ReceiveSegment(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(daemon_.losses.empty());
}

TEST_F(HandleServerTest, DoorbellsAreHeardAndAFloodIsBounded) {
  StartServer();
  auto client = Connect();
  ASSERT_THAT(client, IsOk());
  ASSERT_THAT((*client)->RingDoorbell(), IsOk());
  ASSERT_TRUE(TurnUntil([&] { return daemon_.doorbells == 1; }));
  // Never blocks the worker, whatever the daemon does.
  for (int i = 0; i < 100'000; ++i) {
    ASSERT_THAT((*client)->RingDoorbell(), IsOk());
  }
  const int before = daemon_.doorbells;
  loop_->RunOnce(absl::ZeroDuration());
  EXPECT_EQ(daemon_.doorbells, before + 1) << "one turn, one call";
  ASSERT_THAT(Connect(), IsOk()) << "others get their turn";
}

TEST_F(HandleServerTest, ClosingIsTheEndAndComesAfterTheLastDoorbell) {
  StartServer();
  auto client = Connect();
  ASSERT_THAT(client, IsOk());
  ASSERT_THAT((*client)->RingDoorbell(), IsOk());
  client->reset();
  ASSERT_TRUE(TurnUntil([&] { return !daemon_.losses.empty(); }));
  EXPECT_EQ(daemon_.doorbells, 1);
  EXPECT_THAT(daemon_.losses[0],
              StatusIs(absl::StatusCode::kUnavailable, "closed"));
  loop_->RunOnce(absl::ZeroDuration());
  EXPECT_EQ(daemon_.losses.size(), 1u);
}

TEST_F(HandleServerTest, OtherMessagesThanDoorbellsAreABreach) {
  StartServer();
  const UniqueFd event(eventfd(0, 0));
  const int fd = event.get();
  for (int kind = 0; kind < 3; ++kind) {
    auto client = Connect();
    ASSERT_THAT(client, IsOk());
    const std::vector<std::byte> bytes(
        kind == 0 ? 1000 : 1, std::byte{kind == 1 ? uint8_t{7} : uint8_t{1}});
    const std::span<const int> fds(&fd, kind == 2 ? 1 : 0);
    ASSERT_THAT(SendPacket((*client)->fd(), bytes, fds), IsOk());
    ASSERT_TRUE(TurnUntil([&] { return daemon_.losses.size() > kind; }));
    EXPECT_THAT(daemon_.losses.back(),
                StatusIs(kInvalid, "instead of a doorbell"));
    EXPECT_FALSE((*client)->IsOpen());
  }
}

TEST_F(HandleServerTest, TheDaemonsEndIsSeenByTheWorker) {
  StartServer();
  auto client = Connect();
  ASSERT_THAT(client, IsOk());
  daemon_.links[0]->Close();
  EXPECT_FALSE((*client)->IsOpen());
  EXPECT_THAT((*client)->RingDoorbell(),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT((*client)->ReceiveSegment(kLong),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(daemon_.links[0]->SendSegment(proto::SegmentKind::kWeights, 0, 1),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_TRUE(daemon_.losses.empty()) << "not after Close";
}

TEST_F(HandleServerTest, NoDaemonIsUnavailable) {
  EXPECT_THAT(
      HandleClient::Connect(options_.path, "secret", absl::ZeroDuration()),
      StatusIs(absl::StatusCode::kUnavailable, options_.path));
  StartServer();
  server_.reset();
  EXPECT_THAT(
      HandleClient::Connect(options_.path, "secret", absl::ZeroDuration()),
      StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(HandleServerTest, ADaemonThatDoesNotAnswerIsADeadline) {
  StartServer();  // and nobody turns the loop
  EXPECT_THAT(
      HandleClient::Connect(options_.path, "secret", absl::Milliseconds(5)),
      StatusIs(absl::StatusCode::kDeadlineExceeded));
}

// Processes of their own: a worker that attaches, then dies or forks.
class HandleServerForkTest : public HandleServerTest {
 protected:
  // The child connects, runs `then`, and writes its answer to the pipe.
  template <typename Then>
  pid_t ForkWorker(Then then) {
    const pid_t child = fork();
    if (child != 0) return child;
    auto client = HandleClient::Connect(options_.path, "secret", kLong);
    if (!client.ok()) _exit(1);
    then(client->get());
    _exit(0);
  }
};

TEST_F(HandleServerForkTest, AKilledWorkerIsLost) {
  StartServer();
  const pid_t worker = ForkWorker([](HandleClient*) { pause(); });
  ASSERT_TRUE(TurnUntil([&] { return daemon_.links.size() == 1; }));
  EXPECT_EQ(daemon_.links[0]->peer().pid, worker);
  kill(worker, SIGKILL);
  ASSERT_TRUE(TurnUntil([&] { return daemon_.losses.size() == 1; }));
  waitpid(worker, nullptr, 0);
  EXPECT_TRUE(daemon_.links.empty());
}

// The DataLoader case: the child inherited the socket and even rings.
TEST_F(HandleServerForkTest, AForkedChildDoesNotKeepALease) {
  StartServer();
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t worker = ForkWorker([&](HandleClient* client) {
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      while (client->RingDoorbell().ok()) sched_yield();
      _exit(0);
    }
    [[maybe_unused]] ssize_t size =
        write(pipe_fds[1], &grandchild, sizeof(grandchild));
    pause();
  });
  ASSERT_TRUE(TurnUntil([&] { return daemon_.doorbells > 0; }));
  pid_t grandchild;
  ASSERT_EQ(read(pipe_fds[0], &grandchild, sizeof(grandchild)),
            static_cast<ssize_t>(sizeof(grandchild)));
  kill(worker, SIGKILL);
  ASSERT_TRUE(TurnUntil([&] { return daemon_.losses.size() == 1; }));
  EXPECT_THAT(daemon_.losses[0],
              StatusIs(absl::StatusCode::kUnavailable, "exited"));
  waitpid(worker, nullptr, 0);
  // The daemon closed its side: the grandchild's ringing ends by itself.
  UniqueFd pidfd = Pidfd(grandchild);
  if (pidfd) {
    pollfd poll_fd{pidfd.get(), POLLIN, 0};
    EXPECT_EQ(poll(&poll_fd, 1, 20'000), 1);
  }
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

// I28
TEST_F(HandleServerForkTest, NothingStaysAfterManyWorkers) {
  const auto num_fds = [] {
    int count = 0;
    DIR* const directory = opendir("/proc/self/fd");
    while (readdir(directory) != nullptr) ++count;
    closedir(directory);
    return count;
  };
  StartServer();
  const int before = num_fds();
  for (size_t i = 1; i <= 20; ++i) {
    const pid_t worker = ForkWorker([](HandleClient*) {});
    ASSERT_TRUE(TurnUntil([&] { return daemon_.losses.size() == i; }));
    waitpid(worker, nullptr, 0);
  }
  daemon_.control_fds.clear();
  EXPECT_EQ(num_fds(), before);
}

}  // namespace
}  // namespace ballast::ipc
