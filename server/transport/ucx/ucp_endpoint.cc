#include "server/transport/ucx/ucp_endpoint.h"

#include <utility>

#include "server/base/status_macros.h"
#include "server/transport/ucx/socket_address.h"
#include "server/transport/ucx/ucx_ids.h"
#include "server/transport/ucx/ucx_status.h"

namespace ballast::transport {

absl::StatusOr<std::unique_ptr<UcpEndpoint>> UcpEndpoint::Connect(
    UcpWorker* worker, const std::string& address) {
  ASSIGN_OR_RETURN(const SocketAddress to, SocketAddress::FromString(address));
  std::unique_ptr<UcpEndpoint> endpoint(new UcpEndpoint());
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = to.get();
  params.sockaddr.addrlen = to.size();
  RETURN_IF_ERROR(endpoint->Open(worker, &params));
  return endpoint;
}

absl::StatusOr<std::unique_ptr<UcpEndpoint>> UcpEndpoint::Accept(
    UcpWorker* worker, ucp_conn_request_h request) {
  std::unique_ptr<UcpEndpoint> endpoint(new UcpEndpoint());
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  RETURN_IF_ERROR(endpoint->Open(worker, &params));
  return endpoint;
}

absl::Status UcpEndpoint::Open(UcpWorker* worker, ucp_ep_params_t* params) {
  params->field_mask |=
      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params->err_handler.cb = OnError;
  params->err_handler.arg = this;
  return UcxStatus(ucp_ep_create(worker->get(), params, &endpoint_),
                   "ucp_ep_create");
}

void UcpEndpoint::OnError(void* endpoint, ucp_ep_h, ucs_status_t status) {
  static_cast<UcpEndpoint*>(endpoint)->status_ =
      UcxStatus(status, "connection");
}

void UcpEndpoint::OnSendDone(void* request, ucs_status_t, void* observer) {
  // A failed send ends the connection: OnError says so.
  ucp_request_free(request);
  static_cast<UcpSendObserver*>(observer)->OnSent();
}

absl::Status UcpEndpoint::Send(std::span<const std::byte> message,
                               UcpSendObserver* observer) {
  if (!status_.ok()) return status_;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS |
                       UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = OnSendDone;
  param.user_data = observer;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_, kActiveMessageId, nullptr, 0, message.data(),
                      message.size(), &param);
  if (UCS_PTR_IS_ERR(request)) {
    status_ = UcxStatus(UCS_PTR_STATUS(request), "send");
    return status_;
  }
  if (request == nullptr) observer->OnSent();
  return absl::OkStatus();
}

void UcpEndpoint::Close() {
  const ucp_ep_h endpoint = std::exchange(endpoint_, nullptr);
  if (endpoint == nullptr) return;
  if (status_.ok()) status_ = absl::CancelledError("connection closed");
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &param);
  // The rest of the closing belongs to the worker's progress.
  if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
}

}  // namespace ballast::transport
