#include "client/worker/ties.h"

#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::worker {
namespace {

using base::IsOk;
using base::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::array<std::byte, 256> memory;

absl::Status Check(const std::vector<std::span<const std::byte>>& values) {
  return CheckTies(values, [](size_t i) { return absl::StrCat("t", i); });
}
std::span<const std::byte> At(size_t offset, size_t size) {
  return std::span(memory).subspan(offset, size);
}

TEST(TiesTest, NeighboursAndEmptyValuesAreNoTies) {
  EXPECT_THAT(Check({}), IsOk());
  EXPECT_THAT(Check({At(64, 64),
                     At(0, 64),
                     At(128, 1),
                     At(129, 0),
                     At(64, 0),
                     At(64, 0),
                     {},
                     {}}),
              IsOk());
}

TEST(TiesTest, TheSameMemoryIsATie) {  // I16
  EXPECT_THAT(Check({At(64, 8), At(0, 64), At(64, 8)}),
              StatusIs(kInvalid,
                       "tensors \"t0\" and \"t2\" share storage: register it "
                       "once"));
}

TEST(TiesTest, APartOfAnotherIsRefusedToo) {  // I16
  EXPECT_THAT(Check({At(0, 64), At(60, 64)}),
              StatusIs(kInvalid,
                       "tensors \"t0\" and \"t1\" overlap in memory by 4 "
                       "bytes"));
  EXPECT_THAT(Check({At(16, 4), At(200, 8), At(0, 64)}),
              StatusIs(kInvalid, "\"t0\" and \"t2\" overlap in memory by 4"));
  EXPECT_THAT(Check({At(0, 64), At(0, 8)}),
              StatusIs(kInvalid, "overlap in memory by 8 bytes"));
}

// Not only neighbours in the list, and not only neighbours in memory.
TEST(TiesTest, AnyPairIsFound) {  // I16
  std::vector<std::span<const std::byte>> values = {At(0, 100)};
  for (size_t i = 0; i < 50; ++i) values.push_back(At(100 + 2 * i, 2));
  EXPECT_THAT(Check(values), IsOk());
  values[0] = At(0, 101);
  EXPECT_THAT(Check(values), StatusIs(kInvalid, "\"t0\" and \"t1\""));
  values[0] = At(0, 256);
  EXPECT_THAT(Check(values), StatusIs(kInvalid, "\"t0\" and \"t1\""));
}

}  // namespace
}  // namespace ballast::worker
