// The grammar of names that users choose (proto/README.md): safe in file
// names, metric labels and log lines, and wide enough for PyTorch and
// DeepSpeed parameter names.
//
// Errors are InvalidArgument and name the value (escaped and cut), the rule
// that it breaks and what to do.
#ifndef SERVER_BASE_NAMES_H_
#define SERVER_BASE_NAMES_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace ballast::base {

inline constexpr size_t kMaxJobNameBytes = 63;  // also of a tenant
inline constexpr size_t kMaxTensorNameBytes = 255;

// [A-Za-z0-9][A-Za-z0-9._-]*, 1 to 63 bytes, no "..".
absl::Status CheckJobName(std::string_view name);
absl::Status CheckTenantName(std::string_view name);

// [A-Za-z0-9_][A-Za-z0-9_.:/-]*, 1 to 255 bytes, no "..", no "//", no "/."
// and no "/" at the end.
absl::Status CheckTensorName(std::string_view name);

// `text` in quotes, with control and non-ASCII bytes escaped, at most about 64
// bytes of it: how anything that came from outside is put into an error.
std::string Quoted(std::string_view text);

}  // namespace ballast::base

#endif  // SERVER_BASE_NAMES_H_
