#include "server/daemon/kept/kept_formats.h"

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::daemon {
namespace {

using base::IsOk;
using base::StatusIs;

TEST(KeptFormatsTest, ItsOwnAreRead) {
  EXPECT_THAT(CheckFormats(OwnFormats()), IsOk());
}

// They are the first ones still.
TEST(KeptFormatsTest, NoneRecordedAreTheFirst) {
  EXPECT_THAT(CheckFormats(v1::KeptFormats()), IsOk());
}

TEST(KeptFormatsTest, OthersAreRefusedByName) {
  v1::KeptFormats blocks = OwnFormats();
  blocks.set_control_block(blocks.control_block() + 1);
  EXPECT_THAT(CheckFormats(blocks),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "its control blocks are kept in format"));
  v1::KeptFormats chunks = OwnFormats();
  chunks.set_published_chunks(chunks.published_chunks() + 1);
  EXPECT_THAT(CheckFormats(chunks),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "its published chunks are kept in format"));
}

}  // namespace
}  // namespace ballast::daemon
