// Carries the protocol's messages over UCX: owns the worker, the endpoints
// and the buffers that messages leave from. What it sends is a copy, so an
// exchange can be cancelled while UCX still holds a message of it.
//
//   Protocol ── NextMessage ──▶ slot ── UcpEndpoint ──▶ network
//            ◀── OnMessage ──── UcpWorker ◀────────────
//
// Waits on UCX's event fd and a wake fd, at most until the protocol's next
// tick; never spins.
//
// Threading: Connect and Wake from any thread; all else confined
// to the thread that makes progress, which may change while nothing runs.
#ifndef SERVER_TRANSPORT_UCX_WIRE_H_
#define SERVER_TRANSPORT_UCX_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/ids.h"
#include "server/base/mutex.h"
#include "server/base/unique_fd.h"
#include "server/transport/ucx/protocol.h"
#include "server/transport/ucx/ucp_endpoint.h"
#include "server/transport/ucx/ucp_worker.h"

namespace ballast::transport {

class Wire final : public UcpReceiver {
 public:
  struct Options {
    std::string transports = "tcp";
    std::string devices;
    std::string listen_address;
    // Connections taken from others; more are refused.
    int max_incoming = 1024;
    // Messages under way to one peer, each of at most a chunk.
    int window = 4;
    // How long Drain waits for what is queued.
    absl::Duration drain_timeout = absl::Milliseconds(200);
  };

  // `protocol` and `clock` outlive the wire.
  static absl::StatusOr<std::unique_ptr<Wire>> Create(const Options& options,
                                                      Protocol* protocol,
                                                      const base::Clock* clock);
  // Closes all connections; does not wait.
  ~Wire() override;

  const std::string& address() const { return address_; }

  // Makes `connection` of the protocol: to the wire of this address, in place
  // of the one to `node` that there may be.
  void Connect(NodeRank node, uint64_t connection, std::string address);
  // Makes RunOnce return.
  void Wake();

  // Does what there is to do; waits at most `max_wait` if there is nothing.
  void RunOnce(absl::Duration max_wait);
  // Sends what is queued, for at most drain_timeout.
  void Drain();

 private:
  class Link;
  struct Command {
    NodeRank node;
    uint64_t connection;
    std::string address;
  };

  Wire(const Options& options, Protocol* protocol, const base::Clock* clock);

  void OnMessage(std::span<const std::byte> message) override;
  void OnConnection(ucp_conn_request_h request) override;
  void RunCommands();
  void Accept();
  bool MakeProgress();
  bool Pump();
  void Tick();
  void WaitFor(absl::Duration max_wait);
  void Retire(std::unique_ptr<Link> link);

  const Options options_;
  Protocol* const protocol_;
  const base::Clock* const clock_;
  base::UniqueFd wake_;
  std::unique_ptr<UcpWorker> worker_;
  std::string address_;
  absl::Time next_tick_ = absl::InfinitePast();
  absl::flat_hash_map<NodeRank, std::unique_ptr<Link>> links_;
  // What others send comes over connections of theirs.
  std::vector<ucp_conn_request_h> requests_;
  std::vector<std::unique_ptr<UcpEndpoint>> incoming_;
  // Closed, but UCX may still hold messages of theirs.
  std::vector<std::unique_ptr<Link>> retired_;

  base::Mutex mutex_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_WIRE_H_
