#include "server/metrics/families.h"

#include <algorithm>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::metrics {
namespace {

using ::testing::EndsWith;
using ::testing::Not;
using ::testing::StartsWith;

TEST(FamiliesTest, TheTableIsInTheOrderOfTheEnum) {
  ASSERT_EQ(Families().size(), static_cast<size_t>(Family::kNumFamilies));
  for (size_t i = 0; i < Families().size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(Families()[i].family), i);
  }
}

TEST(FamiliesTest, NamesFollowTheRules) {
  std::set<std::string_view> names;
  for (const FamilyInfo& info : Families()) {
    const std::string name(info.name);
    EXPECT_THAT(name, StartsWith("ballast_"));
    EXPECT_TRUE(names.insert(info.name).second) << name;
    EXPECT_FALSE(info.help.empty()) << name;
    if (info.kind == Kind::kCounter) {
      EXPECT_THAT(name, EndsWith("_total"));
    } else {
      EXPECT_THAT(name, Not(EndsWith("_total")));
    }
    EXPECT_EQ(info.kind == Kind::kHistogram, !info.buckets.empty()) << name;
    EXPECT_TRUE(std::ranges::is_sorted(info.buckets));
  }
}

TEST(FamiliesTest, LabelsAreBoundedAndOurs) {
  // Prometheus adds these itself (or refuses them).
  const std::set<std::string_view> reserved = {
      "job",  "instance", "pod", "namespace", "container",
      "node", "type",     "le",  "job_id"};
  size_t num_series = 0;
  for (const FamilyInfo& info : Families()) {
    size_t series = 1;
    for (const Label& label : info.labels) {
      EXPECT_FALSE(reserved.contains(label.name)) << info.name;
      EXPECT_FALSE(label.values.empty()) << info.name;
      series *= label.values.size();
    }
    num_series += series * (info.is_per_job ? 8 : 1) *
                  (info.kind == Kind::kHistogram ? info.buckets.size() + 3 : 1);
  }
  EXPECT_LT(num_series, 3000u) << "with 8 jobs";
}

}  // namespace
}  // namespace ballast::metrics
