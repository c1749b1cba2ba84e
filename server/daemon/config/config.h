// The daemon's configuration: YAML onto proto/config.proto, strictly. Unknown
// keys, wrong types and values out of bounds are errors that name the key, the
// value and what was expected (I21, I27).
//
//   defaults  <-  --config FILE  <-  --set key.path=value …
//
// Threading: pure functions (LoadFile reads a file).
#ifndef SERVER_DAEMON_CONFIG_CONFIG_H_
#define SERVER_DAEMON_CONFIG_CONFIG_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/config.pb.h"

namespace ballast::daemon {

v1::Config DefaultConfig();

// Lays a YAML document, or one "key.path=value", over `config`.
absl::Status ApplyYaml(const std::string& yaml, v1::Config* config);
absl::Status ApplyOverride(std::string_view override, v1::Config* config);

// Bounds, addresses, durations.
absl::Status CheckConfig(const v1::Config& config);

// All of it in order; an empty `path` means no file.
absl::StatusOr<v1::Config> LoadConfig(
    const std::string& path, const std::vector<std::string>& overrides);

// YAML that ApplyYaml takes again.
std::string PrintConfig(const v1::Config& config);

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_CONFIG_CONFIG_H_
