// Sizes and durations as people write them.
//
// Threading: pure functions.
#ifndef SERVER_DAEMON_CONFIG_UNITS_H_
#define SERVER_DAEMON_CONFIG_UNITS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace ballast::daemon {

// "4096", "256KiB", "4 MiB", "1GiB", "2TiB"; also kB, MB, GB (powers of ten).
// nullopt for anything else, negative or beyond 64 bits.
std::optional<uint64_t> ParseSize(std::string_view text);
std::string FormatSize(uint64_t size_bytes);  // ParseSize takes it again

// "90s", "10m", "1h30m", "250ms"; finite and not negative.
std::optional<absl::Duration> ParseDuration(std::string_view text);

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_CONFIG_UNITS_H_
