// An IP address with a port, as sockets and UCX take it and as text.
//
// Threading: thread-compatible.
#ifndef SERVER_TRANSPORT_UCX_SOCKET_ADDRESS_H_
#define SERVER_TRANSPORT_UCX_SOCKET_ADDRESS_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace ballast::transport {

class SocketAddress {
 public:
  SocketAddress() = default;
  explicit SocketAddress(const sockaddr_storage& storage) : storage_(storage) {}

  // "10.0.0.1" or "fd00::1". InvalidArgument for anything else.
  static absl::StatusOr<SocketAddress> Parse(const std::string& ip,
                                             uint16_t port);
  // What ToString gives: "10.0.0.1:47011", "[fd00::1]:47011".
  static absl::StatusOr<SocketAddress> FromString(const std::string& text);
  // Of a network device, port 0; IPv4 if it has one. InvalidArgument if it
  // is none or has none.
  static absl::StatusOr<SocketAddress> OfDevice(const std::string& device);

  std::string ToString() const;
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage_);
  }
  socklen_t size() const;

 private:
  sockaddr_storage storage_{};
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_SOCKET_ADDRESS_H_
