#include "server/daemon/admin_door.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

#include "absl/strings/match.h"
#include "server/base/status_macros.h"
#include "server/base/unique_fd.h"

namespace ballast::daemon {
namespace {

constexpr char kUnixPrefix[] = "unix://";
constexpr int kMaxAcceptsPerTurn = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<AdminDoor>> AdminDoor::Open(
    const std::string& address, std::unique_ptr<grpc::Service> service,
    base::EventLoop* loop) {
  auto door = std::unique_ptr<AdminDoor>(new AdminDoor(loop));
  if (!absl::StartsWith(address, kUnixPrefix)) {
    ASSIGN_OR_RETURN(door->server_,
                     service::GrpcServer::Listen(address, std::move(service)));
    door->address_ = door->server_->address();
    return door;
  }
  door->address_ = address;
  ASSIGN_OR_RETURN(door->server_,
                   service::GrpcServer::WithoutPort(std::move(service)));
  RETURN_IF_ERROR(door->ListenUnix(address.substr(sizeof(kUnixPrefix) - 1)));
  return door;
}

AdminDoor::~AdminDoor() {
  if (socket_.has_value()) loop_->UnwatchFd(socket_->fd());
}

absl::Status AdminDoor::ListenUnix(const std::string& path) {
  ASSIGN_OR_RETURN(ipc::SocketPath socket,
                   ipc::SocketPath::Listen(path, SOCK_STREAM, 0600));
  socket_.emplace(std::move(socket));
  return loop_->WatchFd(socket_->fd(), EPOLLIN,
                        [this](uint32_t) { OnAcceptable(); });
}

void AdminDoor::OnAcceptable() {
  for (int i = 0; i < kMaxAcceptsPerTurn; ++i) {
    base::UniqueFd fd(
        accept4(socket_->fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return;
    server_->AddConnection(std::move(fd));
  }
}

}  // namespace ballast::daemon
