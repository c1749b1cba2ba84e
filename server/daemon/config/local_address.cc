#include "server/daemon/config/local_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <memory>

namespace ballast::daemon {
namespace {

constexpr char kLoopback[] = "127.0.0.1";

bool IsUsable(const ifaddrs& entry, int family) {
  return entry.ifa_addr != nullptr && entry.ifa_addr->sa_family == family &&
         (entry.ifa_flags & IFF_UP) != 0 &&
         (entry.ifa_flags & IFF_LOOPBACK) == 0;
}

// Empty for a link-local address, which means nothing without its interface.
std::string Format(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.sa_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text));
  } else {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
    if (IN6_IS_ADDR_LINKLOCAL(&in.sin6_addr)) return "";
    inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof(text));
  }
  return text;
}

}  // namespace

std::optional<std::string> NumericHost(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  std::string host(address.substr(0, colon));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    return v4.s_addr == INADDR_ANY ? std::nullopt : std::optional(host);
  }
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) {
    return IN6_IS_ADDR_UNSPECIFIED(&v6) ? std::nullopt : std::optional(host);
  }
  return std::nullopt;
}

std::string LocalAddress() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return kLoopback;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(first,
                                                              &freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = first; entry != nullptr;
         entry = entry->ifa_next) {
      if (!IsUsable(*entry, family)) continue;
      std::string address = Format(*entry->ifa_addr);
      if (!address.empty()) return address;
    }
  }
  return kLoopback;
}

}  // namespace ballast::daemon
