// The version of the format in which memory was left for a later life.
#ifndef SERVER_DEVICE_KEPT_VERSION_H_
#define SERVER_DEVICE_KEPT_VERSION_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ballast::device {

// FailedPrecondition, which leaves it to who wrote it, where the two differ.
// `what`, in the plural: "undo logs".
inline absl::Status CheckKeptVersion(std::string_view what, uint32_t found,
                                     uint32_t known) {
  if (found == known) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("its ", absl::string_view(what.data(), what.size()),
                   " are kept in format ", found, ", this version knows ",
                   known, ": start the version of ballastd that wrote them"));
}

}  // namespace ballast::device

#endif  // SERVER_DEVICE_KEPT_VERSION_H_
