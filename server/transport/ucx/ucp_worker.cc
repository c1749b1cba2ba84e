#include "server/transport/ucx/ucp_worker.h"

#include <linux/filter.h>
#include <sys/socket.h>
#include <ucs/config/global_opts.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"
#include "server/transport/ucx/socket_address.h"
#include "server/transport/ucx/ucx_ids.h"
#include "server/transport/ucx/ucx_status.h"

namespace ballast::transport {
namespace {

absl::Status Modify(ucp_config_t* config, const char* name,
                    const std::string& value) {
  return UcxStatus(ucp_config_modify(config, name, value.c_str()),
                   absl::StrCat("UCX option ", name, "=", value));
}

// Every failure that UCX logs comes back as a status, and many are of a kind
// that a peer can cause: only what ends the process is worth its own line.
absl::Status QuietLog() {
  return UcxStatus(ucs_global_opts_set_value("LOG_LEVEL", "fatal"),
                   "UCX option LOG_LEVEL");
}

absl::Status Configure(ucp_config_t* config,
                       const UcpWorker::Options& options) {
  RETURN_IF_ERROR(Modify(config, "TLS", options.transports));
  if (!options.devices.empty()) {
    RETURN_IF_ERROR(Modify(config, "NET_DEVICES", options.devices));
  }
  RETURN_IF_ERROR(
      Modify(config, "RX_SEG_SIZE", absl::StrCat(options.segment_bytes)));
  // Send from the caller's buffer: the copy into UCX's 8 KiB buffers cuts a
  // message into as many pieces.
  RETURN_IF_ERROR(Modify(config, "ZCOPY_THRESH", "1k"));
  // A connect must never block the progress thread.
  return Modify(config, "CONN_NB", "y");
}

ucs_status_t OnActiveMessage(void* receiver, const void*, size_t, void* data,
                             size_t length, const ucp_am_recv_param_t* param) {
  // Rendezvous is an offer to fetch; nobody of ours makes one.
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
    static_cast<UcpReceiver*>(receiver)->OnMessage(
        {static_cast<const std::byte*>(data), length});
  }
  return UCS_OK;
}

void OnConnectionRequest(ucp_conn_request_h request, void* receiver) {
  static_cast<UcpReceiver*>(receiver)->OnConnection(request);
}

// This process's socket that listens at the address, which UCX does not tell;
// -1: none was found.
int FindListener(const std::string& address) {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd", error)) {
    int fd = -1;
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (!absl::SimpleAtoi(entry.path().filename().string(), &fd) ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 ||
        listens == 0) {
      continue;
    }
    sockaddr_storage name{};
    size = sizeof(name);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0 &&
        SocketAddress(name).ToString() == address) {
      return fd;
    }
  }
  return -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcpWorker>> UcpWorker::Create(
    const Options& options, UcpReceiver* receiver) {
  std::unique_ptr<UcpWorker> worker(new UcpWorker(receiver));
  RETURN_IF_ERROR(worker->Open(options));
  return worker;
}

absl::Status UcpWorker::Open(const Options& options) {
  RETURN_IF_ERROR(QuietLog());
  ucp_config_t* config = nullptr;
  RETURN_IF_ERROR(
      UcxStatus(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read"));
  const absl::Cleanup release = [config] { ucp_config_release(config); };
  RETURN_IF_ERROR(Configure(config, options));

  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  RETURN_IF_ERROR(
      UcxStatus(ucp_init(&params, config, &context_),
                absl::StrCat("UCX with transports \"", options.transports,
                             "\" on devices \"", options.devices,
                             "\" (each must be there and up)")));

  ucp_worker_params_t worker_params{};
  worker_params.field_mask =
      UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  worker_params.events = UCP_WAKEUP_RX | UCP_WAKEUP_TX;
  RETURN_IF_ERROR(
      UcxStatus(ucp_worker_create(context_, &worker_params, &worker_),
                "ucp_worker_create"));
  RETURN_IF_ERROR(
      UcxStatus(ucp_worker_get_efd(worker_, &event_fd_), "ucp_worker_get_efd"));

  RETURN_IF_ERROR(SetHandler());
  return Listen(options);
}

absl::Status UcpWorker::Listen(const Options& options) {
  SocketAddress address;
  if (options.listen_address.empty()) {
    ASSIGN_OR_RETURN(address, SocketAddress::OfDevice(options.devices));
  } else {
    ASSIGN_OR_RETURN(address, SocketAddress::Parse(options.listen_address, 0));
  }
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                      UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = address.get();
  params.sockaddr.addrlen = address.size();
  params.conn_handler.cb = OnConnectionRequest;
  params.conn_handler.arg = receiver_;
  RETURN_IF_ERROR(UcxStatus(ucp_listener_create(worker_, &params, &listener_),
                            absl::StrCat("listen on ", address.ToString())));
  ASSIGN_OR_RETURN(const std::string at, Address());
  listen_fd_ = FindListener(at);
  return absl::OkStatus();
}

absl::Status UcpWorker::SetHandler() {
  ucp_am_handler_param_t handler{};
  handler.field_mask =
      UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kActiveMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = OnActiveMessage;
  handler.arg = receiver_;
  return UcxStatus(ucp_worker_set_am_recv_handler(worker_, &handler),
                   "ucp_worker_set_am_recv_handler");
}

void UcpWorker::StopListening(absl::FunctionRef<bool()> keep_going) {
  if (listen_fd_ < 0) return;
  // A filter that takes no packet: the kernel accepts nothing more, and UCX
  // does not notice.
  sock_filter take_nothing = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program = {1, &take_nothing};
  setsockopt(listen_fd_, SOL_SOCKET, SO_ATTACH_FILTER, &program,
             sizeof(program));
  listen_fd_ = -1;
  while (keep_going()) Progress();
}

UcpWorker::~UcpWorker() {
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

void UcpWorker::Flush(absl::FunctionRef<bool()> keep_going) {
  const ucp_request_param_t param{};
  const ucs_status_ptr_t request = ucp_worker_flush_nbx(worker_, &param);
  if (!UCS_PTR_IS_PTR(request)) return;
  if (!Await(request, keep_going)) unfinished_.push_back(request);
}

bool UcpWorker::Await(ucs_status_ptr_t request,
                      absl::FunctionRef<bool()> keep_going) {
  while (ucp_request_check_status(request) == UCS_INPROGRESS) {
    if (!keep_going()) return false;
    Progress();
  }
  ucp_request_free(request);
  return true;
}

bool UcpWorker::Settle(absl::FunctionRef<bool()> keep_going) {
  Flush(keep_going);
  while (!unfinished_.empty()) {
    if (!Await(unfinished_.back(), keep_going)) return false;
    unfinished_.pop_back();
  }
  return true;
}

void UcpWorker::Abandon() {
  listener_ = nullptr;
  worker_ = nullptr;
  context_ = nullptr;
}

absl::StatusOr<std::string> UcpWorker::Address() const {
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  RETURN_IF_ERROR(UcxStatus(ucp_listener_query(listener_, &attributes),
                            "ucp_listener_query"));
  return SocketAddress(attributes.sockaddr).ToString();
}

void UcpWorker::Reject(ucp_conn_request_h request) {
  ucp_listener_reject(listener_, request);
}

}  // namespace ballast::transport
