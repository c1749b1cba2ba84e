#include "server/base/status_macros.h"

#include <utility>

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::base {
namespace {

class Keeper {
 public:
  explicit Keeper(absl::Status status) : status_(std::move(status)) {}
  absl::Status Check() const {
    RETURN_IF_ERROR(status_);
    return absl::UnknownError("went on");
  }
  absl::StatusOr<int> Value() const {
    const absl::StatusOr<int> result_ = status_;
    ASSIGN_OR_RETURN(const int value, result_);
    return value;
  }

 private:
  const absl::Status status_;
};

// The macros' own names must not be what the expression names.
TEST(StatusMacrosTest, AMemberNamedStatusIsRead) {
  const Keeper keeper(absl::NotFoundError("mine"));
  EXPECT_THAT(keeper.Check(), StatusIs(absl::StatusCode::kNotFound, "mine"));
  EXPECT_THAT(keeper.Value(), StatusIs(absl::StatusCode::kNotFound, "mine"));
  EXPECT_THAT(Keeper(absl::OkStatus()).Check(),
              StatusIs(absl::StatusCode::kUnknown));
}

}  // namespace
}  // namespace ballast::base
