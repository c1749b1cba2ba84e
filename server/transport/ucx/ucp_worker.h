// A UCP context with its one worker: what listens, receives, makes progress
// and is waited for. Set up from Options alone; the variables UCX_* of the
// environment still count where Options say nothing.
//
// Threading: confined to one thread at a time (UCS_THREAD_MODE_SINGLE).
// Lifetime: endpoints are released before their worker.
#ifndef SERVER_TRANSPORT_UCX_UCP_WORKER_H_
#define SERVER_TRANSPORT_UCX_UCP_WORKER_H_

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast::transport {

// Takes what comes to a worker; called from inside Progress().
class UcpReceiver {
 public:
  virtual ~UcpReceiver() = default;

  // `message` is hostile input, gone when the call returns.
  virtual void OnMessage(std::span<const std::byte> message) = 0;

  // Somebody connects. The request goes to UcpEndpoint::Accept or to Reject,
  // later, not from inside.
  virtual void OnConnection(ucp_conn_request_h request) = 0;
};

class UcpWorker {
 public:
  struct Options {
    std::string transports = "tcp";
    // Empty: UCX chooses. Between network namespaces of one machine it must
    // be set, otherwise UCX may find a way around the link.
    std::string devices;
    // IP address, numeric, to listen on, at any port. Empty: the one of
    // `devices`, if that is one device.
    std::string listen_address;
    // Messages up to this size, UCX's headers included, travel as one piece
    // and without a copy by UCX. At least 16 KiB.
    size_t segment_bytes = 64 << 10;
  };

  // `receiver` outlives the worker.
  static absl::StatusOr<std::unique_ptr<UcpWorker>> Create(
      const Options& options, UcpReceiver* receiver);
  ~UcpWorker();

  UcpWorker(const UcpWorker&) = delete;
  UcpWorker& operator=(const UcpWorker&) = delete;

  ucp_worker_h get() const { return worker_; }
  // Becomes readable after Arm() when there is something to do.
  int event_fd() const { return event_fd_; }
  // "10.0.0.1:47011", for UcpEndpoint::Connect.
  absl::StatusOr<std::string> Address() const;

  void Reject(ucp_conn_request_h request);

  // Brings what UCX has taken to the kernel, while `keep_going` says so.
  void Flush(absl::FunctionRef<bool()> keep_going);

  // Nobody can connect from now on; who was about to gets a moment to say so,
  // and ends as a request. Before the worker is destroyed: UCX 1.13's own
  // thread would call back into a listener that is gone.
  void StopListening(absl::FunctionRef<bool()> keep_going);

  // After all endpoints were closed: brings them, and flushes that were given
  // up, to their end. False if that is not done when `keep_going` says no.
  bool Settle(absl::FunctionRef<bool()> keep_going);

  // UCX ends the process if a worker is destroyed while an endpoint of it is
  // still closing. Then it is better left alone, memory and all.
  void Abandon();

  // True if something was done.
  bool Progress() { return ucp_worker_progress(worker_) != 0; }
  // False if there is something to do already: call Progress again.
  bool Arm() { return ucp_worker_arm(worker_) != UCS_ERR_BUSY; }

 private:
  explicit UcpWorker(UcpReceiver* receiver) : receiver_(receiver) {}

  absl::Status Open(const Options& options);
  absl::Status Listen(const Options& options);
  absl::Status SetHandler();
  bool Await(ucs_status_ptr_t request, absl::FunctionRef<bool()> keep_going);

  UcpReceiver* const receiver_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  int event_fd_ = -1;   // UCX's own
  int listen_fd_ = -1;  // likewise
  // Flushes that were given up hold endpoints all the same.
  std::vector<ucs_status_ptr_t> unfinished_;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_UCP_WORKER_H_
