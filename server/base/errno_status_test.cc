#include "server/base/errno_status.h"

#include <cerrno>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "server/base/status_macros.h"
#include "server/base/status_matchers.h"

namespace ballast::base {
namespace {

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError("odd");
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  ASSIGN_OR_RETURN(const int half, Half(value));
  int quarter;
  ASSIGN_OR_RETURN(quarter, Half(half));
  return quarter;
}

TEST(ErrnoStatusTest, CarriesContextTextAndCode) {
  EXPECT_THAT(ErrnoStatus(ENOENT, "open x"),
              StatusIs(absl::StatusCode::kNotFound,
                       "open x: No such file or directory"));
  EXPECT_THAT(ErrnoStatus(ENOSPC, "write"),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(StatusMacrosTest, ReturnTheFirstError) {
  EXPECT_EQ(Quarter(8).value(), 2);
  EXPECT_THAT(Quarter(7), StatusIs(absl::StatusCode::kInvalidArgument, "odd"));
  EXPECT_THAT(Quarter(6), StatusIs(absl::StatusCode::kInvalidArgument, "odd"));
}

}  // namespace
}  // namespace ballast::base
