// The rate of an exchange as a ratio to a raw TCP stream on the same path in
// the same run: two processes, one direction, between network namespaces, or
// over loopback where those cannot be made.
//
//   exchange_bench [MEGABYTES [ROUNDS]]

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/base/clock.h"
#include "server/base/event_loop.h"
#include "server/base/unique_fd.h"
#include "server/transport/ucx/namespace_testing.h"
#include "server/transport/ucx/ucx_transport.h"

namespace ballast::transport {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(120);
constexpr uint16_t kPort = 47470;
constexpr size_t kWriteBytes = 256 << 10;

class Done final : public ExchangeObserver {
 public:
  void OnExchangeDone(Exchange*, Step, const absl::Status& done) override {
    status = done;
  }
  std::optional<absl::Status> status;
};

sockaddr_in SocketAddress(const std::string& address) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(kPort);
  inet_pton(AF_INET, address.c_str(), &result.sin_addr);
  return result;
}

// Side 1 takes all bytes and answers with one.
void ServeRaw(int listener, std::vector<std::byte>* bytes) {
  const base::UniqueFd peer(accept(listener, nullptr, nullptr));
  size_t taken = 0;
  while (taken < bytes->size()) {
    const ssize_t size =
        recv(peer.get(), bytes->data() + taken, bytes->size() - taken, 0);
    if (size <= 0) return;
    taken += size;
  }
  send(peer.get(), "", 1, 0);
}

void SendRaw(const std::string& address, const std::vector<std::byte>& bytes) {
  const base::UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in to = SocketAddress(address);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) <
      0) {
    return;
  }
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t size = send(fd.get(), bytes.data() + sent,
                              std::min(kWriteBytes, bytes.size() - sent), 0);
    if (size <= 0) return;
    sent += size;
  }
  char answer;
  recv(fd.get(), &answer, 1, 0);
}

// Each message "raw" or "ucx" runs one transfer; side 0 answers its seconds.
void RunSide(int self, const std::string& device, const std::string& address,
             size_t num_bytes, ChildProcess::Channel* channel) {
  base::MonotonicClock clock;
  auto loop = base::EventLoop::Create(&clock).value();
  const base::UniqueFd listener(socket(AF_INET, SOCK_STREAM, 0));
  if (self == 1) {
    const int one = 1;
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    const sockaddr_in at = SocketAddress(address);
    if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&at),
             sizeof(at)) < 0 ||
        listen(listener.get(), 1) < 0) {
      return;
    }
  }
  UcxTransport::Options options;
  options.wire.devices = device;
  auto transport = UcxTransport::Create(
      options, NodeRank(self), Incarnation(self + 1), &clock, loop.get());
  if (!transport.ok()) return;
  channel->Send((*transport)->LocalToken());
  const NodeRank peer(1 - self);
  const auto token = channel->Receive(kPatience);
  if (!token.has_value() ||
      !(*transport)
           ->Connect(peer, *token, Incarnation(peer.value() + 1))
           .ok()) {
    return;
  }
  std::vector<std::byte> bytes(num_bytes, std::byte{1});
  Done done;
  ExchangeSpec spec;
  if (self == 0) {
    spec.sends = {{peer, bytes}};
  } else {
    spec.receives = {{peer, bytes}};
  }
  auto exchange = (*transport)->Prepare(spec, &done).value();
  int64_t step = 0;
  while (const auto message = channel->Receive(kPatience)) {
    const absl::Time start = clock.Now();
    if (*message == "ucx") {
      done.status.reset();
      if (!exchange->Post(Step(++step)).ok()) return;
      while (!done.status.has_value()) loop->RunOnce(absl::Seconds(1));
      if (!done.status->ok()) {
        std::fprintf(stderr, "%s\n", done.status->ToString().c_str());
        return;
      }
    } else if (self == 0) {
      SendRaw(address, bytes);
    } else {
      ServeRaw(listener.get(), &bytes);
    }
    channel->Send(absl::StrCat(absl::ToDoubleSeconds(clock.Now() - start)));
  }
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

int Main(size_t num_bytes, int num_rounds) {
  auto namespaces = TwoNamespaces::Create();
  const bool is_apart = namespaces.ok();
  std::unique_ptr<ChildProcess> sides[2];
  std::string tokens[2];
  const std::string address =
      is_apart ? (*namespaces)->address(1) : "127.0.0.1";
  for (const int side : {0, 1}) {
    const std::string device = is_apart ? (*namespaces)->device(side) : "lo";
    sides[side] = ChildProcess::Start(
        is_apart ? (*namespaces)->name(side) : "", [&](auto* channel) {
          RunSide(side, device, address, num_bytes, channel);
        });
    if (sides[side] == nullptr) return 1;
    tokens[side] = sides[side]->channel()->Receive(kPatience).value_or("");
  }
  for (const int side : {0, 1}) sides[side]->channel()->Send(tokens[1 - side]);
  std::vector<double> seconds[2];
  const char* const kinds[2] = {"raw", "ucx"};
  for (int round = 0; round <= num_rounds; ++round) {
    for (const int kind : {0, 1}) {
      for (const int side : {1, 0}) sides[side]->channel()->Send(kinds[kind]);
      double value = 0;
      for (const int side : {1, 0}) {
        const auto answer = sides[side]->channel()->Receive(kPatience);
        if (!answer.has_value() || !absl::SimpleAtod(*answer, &value)) {
          std::fprintf(stderr, "%s failed\n", kinds[kind]);
          return 1;
        }
      }
      if (round > 0) seconds[kind].push_back(value);  // the first warms up
    }
  }
  const double raw = num_bytes / Median(seconds[0]);
  const double ucx = num_bytes / Median(seconds[1]);
  std::printf("path %s, %zu bytes, median of %d\n",
              is_apart ? "veth" : "loopback", num_bytes, num_rounds);
  std::printf("raw TCP %.1f MB/s, exchange %.1f MB/s, ratio %.2f\n", raw / 1e6,
              ucx / 1e6, ucx / raw);
  return 0;
}

}  // namespace
}  // namespace ballast::transport

int main(int argc, char** argv) {
  const int megabytes = argc > 1 ? std::atoi(argv[1]) : 64;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  if (megabytes < 1 || rounds < 1) return 2;
  return ballast::transport::Main(size_t{1000000} * megabytes, rounds);
}
