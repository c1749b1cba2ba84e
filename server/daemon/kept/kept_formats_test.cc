#include "server/daemon/kept/kept_formats.h"

#include "absl/strings/str_cat.h"
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

// In either direction: the next daemon may be an older one.
TEST(KeptFormatsTest, OthersAreRefusedByName) {
  struct Case {
    const char* says;
    void (v1::KeptFormats::*set)(uint32_t);
    uint32_t own;
  };
  const v1::KeptFormats own = OwnFormats();
  const Case cases[] = {
      {"its control blocks are kept in format",
       &v1::KeptFormats::set_control_block, own.control_block()},
      {"its published chunks are kept in format",
       &v1::KeptFormats::set_published_chunks, own.published_chunks()},
      {"its optimizer states are kept in format",
       &v1::KeptFormats::set_shard_state, own.shard_state()},
      {"its undo logs are kept in format", &v1::KeptFormats::set_undo_log,
       own.undo_log()},
      {"its gradient residuals are kept in format",
       &v1::KeptFormats::set_residuals, own.residuals()}};
  for (const Case& c : cases) {
    for (const uint32_t found : {c.own + 1, c.own == 1 ? 7 : c.own - 1}) {
      v1::KeptFormats formats = own;
      (formats.*c.set)(found);
      const absl::Status status = CheckFormats(formats);
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           absl::StrCat(c.says, " ", found,
                                        ", this version knows ", c.own)));
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   "start the version of ballastd that wrote"));
    }
  }
}

}  // namespace
}  // namespace ballast::daemon
