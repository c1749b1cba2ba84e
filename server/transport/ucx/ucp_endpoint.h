// The way to one peer's worker.
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
  // `worker` outlives the endpoint. `address` comes from Address() of a
  // worker: UCX does not bear arbitrary bytes here. Does not wait; whether
  // somebody answers is seen later.
  static absl::StatusOr<std::unique_ptr<UcpEndpoint>> Create(
      UcpWorker* worker, const std::string& address);
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
  static void OnError(void* endpoint, ucp_ep_h, ucs_status_t status);
  static void OnSendDone(void* request, ucs_status_t, void* observer);

  ucp_ep_h endpoint_ = nullptr;
  absl::Status status_;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_UCP_ENDPOINT_H_
