#include "server/service/grpc_server.h"

#include <fcntl.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast::service {
namespace {

// What callers can make a server keep at most, whatever they send.
constexpr size_t kMaxMemoryBytes = 512u << 20;
constexpr int kMaxStreamsPerConnection = 16;

void SetBounds(int max_message_bytes, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(max_message_bytes);
  builder->SetMaxSendMessageSize(kMaxMessageBytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                              kMaxStreamsPerConnection);
  // Two daemons must never share a port by accident.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  grpc::ResourceQuota quota("ballast");
  quota.Resize(kMaxMemoryBytes);
  builder->SetResourceQuota(quota);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::WithoutPort(
    std::unique_ptr<grpc::Service> service) {
  auto server = std::unique_ptr<GrpcServer>(new GrpcServer());
  server->service_ = std::move(service);
  grpc::ServerBuilder builder;
  SetBounds(kMaxMessageBytes, &builder);
  builder.RegisterService(server->service_.get());
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) {
    return absl::InternalError("gRPC did not start a server without port");
  }
  return server;
}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Listen(
    const std::string& address, std::unique_ptr<grpc::Service> service,
    int max_message_bytes) {
  grpc::EnableDefaultHealthCheckService(true);
  auto server = std::unique_ptr<GrpcServer>(new GrpcServer());
  server->service_ = std::move(service);
  grpc::ServerBuilder builder;
  SetBounds(max_message_bytes, &builder);
  if (server->service_ != nullptr) {
    builder.RegisterService(server->service_.get());
  } else {
    // gRPC starts no server without a service; this one answers everything
    // but health checks with UNIMPLEMENTED.
    server->nothing_ = std::make_unique<grpc::CallbackGenericService>();
    builder.RegisterCallbackGenericService(server->nothing_.get());
  }
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address,
                     ": the address is in use or not one of this machine"));
  }
  server->address_ = address;
  const size_t colon = address.rfind(':');
  if (address.rfind("unix:", 0) != 0 && colon != std::string::npos) {
    server->address_ = absl::StrCat(address.substr(0, colon), ":", port);
  }
  server->SetReady(false);
  return server;
}

GrpcServer::~GrpcServer() { Shutdown(absl::ZeroDuration()); }

void GrpcServer::AddConnection(base::UniqueFd fd) {
  // gRPC wants a non-blocking descriptor and owns it from here on.
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
  grpc::AddInsecureChannelFromFd(server_.get(), fd.Release());
}

void GrpcServer::SetReady(bool is_ready) {
  grpc::HealthCheckServiceInterface* const health =
      server_->GetHealthCheckService();
  if (health == nullptr) return;
  health->SetServingStatus("ballast.live", true);
  health->SetServingStatus("ballast.ready", is_ready);
  health->SetServingStatus("", is_ready);
}

void GrpcServer::Shutdown(absl::Duration grace) {
  if (server_ == nullptr || is_shut_down_) return;
  is_shut_down_ = true;
  server_->Shutdown(std::chrono::system_clock::now() +
                    absl::ToChronoMilliseconds(grace));
  server_->Wait();
}

}  // namespace ballast::service
