// An address of this machine for other nodes, when the configuration names
// none.
//
// Threading: pure, but for the system's list of interfaces.
#ifndef SERVER_DAEMON_CONFIG_LOCAL_ADDRESS_H_
#define SERVER_DAEMON_CONFIG_LOCAL_ADDRESS_H_

#include <optional>
#include <string>
#include <string_view>

namespace ballast::daemon {

// The host of "host:port" or "[host]:port" if it is a numeric address other
// than "any".
std::optional<std::string> NumericHost(std::string_view address);

// The first interface's that is up and not the loopback: IPv4 before IPv6;
// "127.0.0.1" if there is none.
std::string LocalAddress();

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_CONFIG_LOCAL_ADDRESS_H_
