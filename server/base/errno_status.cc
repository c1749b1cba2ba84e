#include "server/base/errno_status.h"

#include <system_error>

#include "absl/strings/str_cat.h"

namespace ballast::base {

absl::Status ErrnoStatus(int error, std::string_view context) {
  // std::error_code::message, as strerror is not thread-safe.
  return absl::Status(
      absl::ErrnoToStatusCode(error),
      absl::StrCat(absl::string_view(context.data(), context.size()), ": ",
                   std::generic_category().message(error)));
}

}  // namespace ballast::base
