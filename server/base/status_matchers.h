// GoogleTest matchers for absl::Status and absl::StatusOr:
//
//   EXPECT_THAT(Check(""), StatusIs(absl::StatusCode::kInvalidArgument));
//   ASSERT_THAT(result, IsOk());
#ifndef SERVER_BASE_STATUS_MATCHERS_H_
#define SERVER_BASE_STATUS_MATCHERS_H_

#include <ostream>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"

namespace ballast::base {

inline const absl::Status& StatusOf(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, "") {
  *result_listener << StatusOf(arg).ToString();
  return arg.ok();
}

MATCHER_P(StatusIs, code, "") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code;
}

// The code and a part of the text.
MATCHER_P2(StatusIs, code, text, "") {
  const absl::Status& status = StatusOf(arg);
  *result_listener << status.ToString();
  return status.code() == code &&
         std::string_view(status.message().data(), status.message().size())
                 .find(text) != std::string_view::npos;
}

}  // namespace ballast::base

#endif  // SERVER_BASE_STATUS_MATCHERS_H_
