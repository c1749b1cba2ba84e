#include "server/snapshot/files/section_name.h"

#include "gtest/gtest.h"

namespace ballast::snapshot {
namespace {

TEST(SectionNameTest, ReadsWhatItWrites) {
  for (const SectionName& name :
       {SectionName{Kind::kMaster, "wte", 0, 4096, 0},
        SectionName{Kind::kV, "a:b[1:2]/c", 7, 7, 0},
        SectionName{Kind::kPublished, "h.0", 1, int64_t{1} << 40, 0},
        SectionName{Kind::kResidual, "a.1:b", 3, 9, 7},
        SectionName{Kind::kCursor, "", 0, 0, 12}}) {
    EXPECT_EQ(ParseSectionName(ToText(name)), name) << ToText(name);
  }
  EXPECT_EQ(ToText({Kind::kMaster, "wte", 0, 4096, 0}), "master:wte[0:4096]");
  EXPECT_EQ(ToText({Kind::kResidual, "wte", 0, 9, 2}), "residual.2:wte[0:9]");
}

TEST(SectionNameTest, RefusesOthers) {
  for (const char* text : {"",
                           "wte",
                           "master",
                           "master:",
                           "master:wte",
                           "master:wte[0:1",
                           "master:wte[0]",
                           "master:wte[1:0]",
                           "master:wte[-1:2]",
                           "master:wte[00:1]",
                           "master:wte[0:1] ",
                           "master:wte[+0:1]",
                           "master:wte[0:99999999999999999999]",
                           "Master:wte[0:1]",
                           "x:wte[0:1]",
                           "residual:wte[0:1]",
                           "residual.:wte[0:1]",
                           "residual.01:wte[0:1]",
                           "residual.-1:wte[0:1]",
                           "master.0:wte[0:1]",
                           "cursor.1:1",
                           "cursor:",
                           "cursor:-1",
                           "cursor:01",
                           "cursor:1x"}) {
    EXPECT_EQ(ParseSectionName(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace ballast::snapshot
