// Two processes with a real link between them.

#include <signal.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "server/base/clock.h"
#include "server/base/event_loop.h"
#include "server/base/status_matchers.h"
#include "server/transport/ucx/namespace_testing.h"
#include "server/transport/ucx/ucx_transport.h"

namespace ballast::transport {
namespace {

using base::IsOk;

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr absl::Duration kPeerTimeout = absl::Seconds(2);

class DoneFlag final : public ExchangeObserver {
 public:
  void OnExchangeDone(Exchange*, Step, const absl::Status& done) override {
    status = done;
  }
  std::optional<absl::Status> status;
};

// A node as a program: says its token, hears the other's, then moves as many
// bytes both ways, as often, as each message "BYTES STEPS" says, and answers
// "PAYLOAD WIRE" (sent) or the error.
void RunNode(int self, const std::string& device,
             ChildProcess::Channel* channel) {
  base::MonotonicClock clock;
  auto loop = base::EventLoop::Create(&clock).value();
  UcxTransport::Options options;
  options.wire.devices = device;
  options.protocol.peer_timeout = kPeerTimeout;
  options.protocol.ping_interval = absl::Milliseconds(250);
  auto transport = UcxTransport::Create(
      options, NodeRank(self), Incarnation(self + 1), &clock, loop.get());
  if (!transport.ok()) return channel->Send(transport.status().ToString());
  const NodeRank peer(1 - self);
  channel->Send((*transport)->LocalToken());
  const auto token = channel->Receive(kPatience);
  if (!token.has_value()) return;
  absl::Status status =
      (*transport)->Connect(peer, *token, Incarnation(peer.value() + 1));
  int32_t bucket = 0;
  while (const auto message = channel->Receive(kPatience)) {
    const std::vector<std::string> words = absl::StrSplit(*message, ' ');
    std::vector<std::byte> out(std::stoull(words[0]), std::byte(self + 1));
    std::vector<std::byte> in(out.size());
    DoneFlag done;
    ExchangeSpec spec{.bucket = BucketId(bucket++)};
    spec.sends = {{peer, out}};
    spec.receives = {{peer, in}};
    auto exchange = (*transport)->Prepare(spec, &done).value();
    for (int64_t step = 1; step <= std::stoll(words[1]) && status.ok();
         ++step) {
      done.status.reset();
      status = exchange->Post(Step(step));
      while (status.ok() && !done.status.has_value()) {
        loop->RunOnce(absl::Seconds(1));
      }
      if (status.ok()) status = *done.status;
      if (status.ok() && !in.empty() &&
          in.back() != std::byte(peer.value() + 1)) {
        status = absl::InternalError("wrong bytes");
      }
    }
    channel->Send(status.ok()
                      ? absl::StrCat(exchange->counters().payload_sent, " ",
                                     exchange->counters().wire_sent)
                      : status.ToString());
  }
}

class NamespaceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto namespaces = TwoNamespaces::Create();
    if (!namespaces.ok()) {
      GTEST_SKIP() << "needs the right to make network namespaces: "
                   << namespaces.status();
    }
    namespaces_ = *std::move(namespaces);
    std::string tokens[2];
    for (const int side : {0, 1}) {
      const std::string device = namespaces_->device(side);
      nodes_[side] = ChildProcess::Start(
          namespaces_->name(side),
          [side, device](auto* channel) { RunNode(side, device, channel); });
      ASSERT_NE(nodes_[side], nullptr);
      const auto token = nodes_[side]->channel()->Receive(kPatience);
      ASSERT_TRUE(token.has_value());
      ASSERT_EQ(token->find("UCX"), std::string::npos) << *token;
      tokens[side] = *token;
    }
    for (const int side : {0, 1}) Say(side, tokens[1 - side]);
  }

  void Say(int side, const std::string& message) {
    nodes_[side]->channel()->Send(message);
  }
  std::string Hear(int side) {
    return nodes_[side]->channel()->Receive(kPatience).value_or("no answer");
  }
  // Starts an exchange that will not end, and waits until it runs.
  void StartEndless() {
    for (const int side : {0, 1}) Say(side, "1000000 1");
    for (const int side : {0, 1}) ASSERT_EQ(Hear(side)[0], '1');
    for (const int side : {0, 1}) Say(side, "1000000 1000000");
    const uint64_t before = namespaces_->TransmittedBytes(0).value();
    while (namespaces_->TransmittedBytes(0).value() < before + 3000000) {
    }
  }

  std::unique_ptr<TwoNamespaces> namespaces_;
  std::unique_ptr<ChildProcess> nodes_[2];
};

// I21: the interface is the independent witness of the counters.
TEST_F(NamespaceTest, TheInterfaceSawWhatTheCountersSay) {
  for (const int side : {0, 1}) Say(side, "0 1");  // connected after this
  for (const int side : {0, 1}) Hear(side);
  const uint64_t before = namespaces_->TransmittedBytes(0).value();
  for (const int side : {0, 1}) Say(side, "20000000 3");
  uint64_t payload = 0;
  uint64_t wire = 0;
  for (const int side : {1, 0}) {
    const std::string answer = Hear(side);
    const std::vector<std::string> words = absl::StrSplit(answer, ' ');
    ASSERT_EQ(words.size(), 2u) << answer;
    payload = std::stoull(words[0]);
    wire = std::stoull(words[1]);
  }
  const uint64_t seen = namespaces_->TransmittedBytes(0).value() - before;
  EXPECT_EQ(payload, 60000000u);
  EXPECT_LE(wire, payload * 1.001);
  EXPECT_GE(seen, wire) << "there is a way around the link";
  EXPECT_LE(seen, payload * 1.08);
  RecordProperty("tx_bytes_over_payload_permille",
                 static_cast<int>(seen * 1000 / payload));
}

// I23: in each case the survivor names the node and the reason.
TEST_F(NamespaceTest, AKilledPeerIsGone) {
  StartEndless();
  nodes_[1]->Signal(SIGKILL);
  const std::string answer = Hear(0);
  EXPECT_EQ(answer.rfind("UNAVAILABLE: node 1 is gone", 0), 0u) << answer;
}

TEST_F(NamespaceTest, AStoppedPeerIsSilent) {
  StartEndless();
  nodes_[1]->Signal(SIGSTOP);
  const std::string answer = Hear(0);
  EXPECT_EQ(answer.rfind("UNAVAILABLE: node 1 is silent", 0), 0u) << answer;
  // It was not running itself: what it finds is a broken connection.
  nodes_[1]->Signal(SIGCONT);
  const std::string other = Hear(1);
  EXPECT_EQ(other.rfind("UNAVAILABLE: node 0", 0), 0u) << other;
}

TEST_F(NamespaceTest, ACutLinkIsSilentOnBothSides) {
  StartEndless();
  ASSERT_THAT(namespaces_->CutLink(0), IsOk());
  for (const int side : {0, 1}) {
    const std::string answer = Hear(side);
    EXPECT_EQ(answer.rfind(absl::StrCat("UNAVAILABLE: node ", 1 - side), 0), 0u)
        << answer;
  }
}

}  // namespace
}  // namespace ballast::transport
