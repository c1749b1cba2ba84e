// The one translation of errno into Status.
#ifndef SERVER_BASE_ERRNO_STATUS_H_
#define SERVER_BASE_ERRNO_STATUS_H_

#include <string_view>

#include "absl/status/status.h"

namespace ballast::base {

// "CONTEXT: No space left on device", with Abseil's code for `error`. `error`
// is errno as it was right after the failing call; must not be 0.
absl::Status ErrnoStatus(int error, std::string_view context);

}  // namespace ballast::base

#endif  // SERVER_BASE_ERRNO_STATUS_H_
