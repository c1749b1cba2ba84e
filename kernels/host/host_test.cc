#include "kernels/host/host.h"

#include <algorithm>
#include <set>

#include "gtest/gtest.h"
#include "kernels/reference/reference.h"

namespace ballast::kernels {
namespace {

TEST(HostTest, ChoosesTheFirstOfItsTargets) {
  const std::vector<std::string> targets = HostTargets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(targets.front(), HostTarget());
  EXPECT_EQ(HostFor(HostTarget()), &Host());
  EXPECT_EQ(std::set<std::string>(targets.begin(), targets.end()).size(),
            targets.size());
}

TEST(HostTest, EveryTargetHasAFullTable) {
  for (const std::string& name : HostTargets()) {
    const Kernels* table = HostFor(name);
    ASSERT_NE(table, nullptr) << name;
    EXPECT_TRUE(table->tree_sum && table->finish_mean && table->cell_norm &&
                table->optimizer_step && table->cast && table->widen &&
                table->reference && table->subtract && table->encode &&
                table->decode && table->decode_add && table->count_clipped)
        << name;
  }
}

TEST(HostTest, HasNoTableForAnUnknownTarget) {
  EXPECT_EQ(HostFor(""), nullptr);
  EXPECT_EQ(HostFor("AVX9"), nullptr);
}

// Without vector instructions the reference is the table, and only then.
TEST(HostTest, VectorsReplaceEveryEntry) {
  for (const std::string& name : HostTargets()) {
    const bool is_reference =
        HostFor(name)->tree_sum == Reference().tree_sum ||
        HostFor(name)->encode == Reference().encode ||
        HostFor(name)->optimizer_step == Reference().optimizer_step;
    EXPECT_EQ(is_reference, name == "SCALAR") << name;
  }
}

}  // namespace
}  // namespace ballast::kernels
