#include "server/transport/ucx/socket_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/base/errno_status.h"
#include "server/base/status_macros.h"

namespace ballast::transport {

absl::StatusOr<SocketAddress> SocketAddress::Parse(const std::string& ip,
                                                   uint16_t port) {
  SocketAddress address;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&address.storage_);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&address.storage_);
  if (inet_pton(AF_INET, ip.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
  } else if (inet_pton(AF_INET6, ip.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", ip, "\" is not an IP address"));
  }
  return address;
}

absl::StatusOr<SocketAddress> SocketAddress::FromString(
    const std::string& text) {
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port) || port == 0 ||
      port > UINT16_MAX) {
    return absl::InvalidArgumentError("an address without a port");
  }
  std::string ip = text.substr(0, colon);
  if (ip.size() > 2 && ip.front() == '[' && ip.back() == ']') {
    ip = ip.substr(1, ip.size() - 2);
  }
  return Parse(ip, static_cast<uint16_t>(port));
}

absl::StatusOr<SocketAddress> SocketAddress::OfDevice(
    const std::string& device) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) < 0) return base::ErrnoStatus(errno, "getifaddrs");
  const absl::Cleanup release = [all] { freeifaddrs(all); };
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || device != one->ifa_name ||
          one->ifa_addr->sa_family != family) {
        continue;
      }
      SocketAddress address;
      std::memcpy(
          &address.storage_, one->ifa_addr,
          family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      return address;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", device,
                   "\" is not one network device with an IP "
                   "address; name one, or an address to listen on"));
}

std::string SocketAddress::ToString() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (storage_.ss_family == AF_INET6) {
    const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(&storage_);
    inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size());
    return absl::StrCat("[", text.data(), "]:", ntohs(v6->sin6_port));
  }
  const auto* const v4 = reinterpret_cast<const sockaddr_in*>(&storage_);
  inet_ntop(AF_INET, &v4->sin_addr, text.data(), text.size());
  return absl::StrCat(text.data(), ":", ntohs(v4->sin_port));
}

socklen_t SocketAddress::size() const {
  return storage_.ss_family == AF_INET6 ? sizeof(sockaddr_in6)
                                        : sizeof(sockaddr_in);
}

}  // namespace ballast::transport
