// A connection: to a peer's worker, or accepted from one. Always by socket
// addresses and a listener: with worker addresses UCX 1.13 aborts the process
// when the other side dies at the wrong moment of connecting (README.md).
//
// Threading: its worker's thread; callbacks come from inside the worker's
// Progress(), or from Send and Close. They must not release the endpoint.
#ifndef SERVER_TRANSPORT_UCX_UCP_ENDPOINT_H_
#define SERVER_TRANSPORT_UCX_UCP_ENDPOINT_H_

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/transport/ucx/ucp_worker.h"

namespace ballast::transport {

// Gets the end of one send. The bytes must stay until then.
class UcpSendObserver {
 public:
  virtual ~UcpSendObserver() = default;
  virtual void OnSent() = 0;
};

class UcpEndpoint {
 public:
  // `worker` outlives the endpoint; `address` is another worker's. Does not
  // wait; whether somebody answers is seen later.
  static absl::StatusOr<std::unique_ptr<UcpEndpoint>> Connect(
      UcpWorker* worker, const std::string& address);
  // What OnConnection of `worker` told. The request is used up in any case.
  static absl::StatusOr<std::unique_ptr<UcpEndpoint>> Accept(
      UcpWorker* worker, ucp_conn_request_h request);
  // Closes.
  ~UcpEndpoint() { Close(); }

  UcpEndpoint(const UcpEndpoint&) = delete;
  UcpEndpoint& operator=(const UcpEndpoint&) = delete;

  // Not OK once UCX has found the connection broken.
  const absl::Status& status() const { return status_; }

  // `observer` is told once, possibly from inside; not after an error.
  absl::Status Send(std::span<const std::byte> message,
                    UcpSendObserver* observer);

  // Drops what is queued, and tells the observers of it. Does not wait.
  void Close();

 private:
  UcpEndpoint() = default;
  absl::Status Open(UcpWorker* worker, ucp_ep_params_t* params);
  static void OnError(void* endpoint, ucp_ep_h, ucs_status_t status);
  static void OnSendDone(void* request, ucs_status_t, void* observer);

  ucp_ep_h endpoint_ = nullptr;
  absl::Status status_;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_UCP_ENDPOINT_H_
