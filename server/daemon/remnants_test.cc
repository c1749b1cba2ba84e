#include "server/daemon/remnants.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/sim_executor.h"

namespace ballast::daemon {
namespace {

class RemnantsTest : public testing::Test {
 protected:
  std::shared_ptr<snapshot::HeldFiles> Files(uint64_t size_bytes) {
    auto files = std::make_shared<snapshot::HeldFiles>(size_bytes);
    EXPECT_TRUE(files->CreateHeld("file", size_bytes).ok());
    return files;
  }

  const Remnants::Owner owner_{"job", "default", 1000};
  base::SimExecutor world_{1};
  std::vector<std::string> log_;
  Remnants remnants_{&world_,
                     [this](const std::string& line) { log_.push_back(line); }};
};

TEST_F(RemnantsTest, StayAsLongAsTheyMayBe) {  // I28
  const std::weak_ptr<snapshot::HeldFiles> files = [this] {
    auto kept = Files(5000);
    remnants_.Keep(owner_, kept, absl::Minutes(10));
    return kept;
  }();
  EXPECT_EQ(remnants_.bytes(), 5000u);
  world_.RunFor(absl::Minutes(9));
  EXPECT_FALSE(files.expired());
  world_.RunFor(absl::Minutes(2));
  EXPECT_TRUE(files.expired());
  EXPECT_TRUE(remnants_.is_empty());
  EXPECT_EQ(log_.size(), 2u);
}

TEST_F(RemnantsTest, AClaimStopsTheClock) {
  remnants_.Keep(owner_, Files(5000), absl::Minutes(10));
  EXPECT_NE(remnants_.Claim(owner_), nullptr);
  EXPECT_EQ(remnants_.Claim(owner_), nullptr);  // by one job at a time
  world_.RunFor(absl::Hours(1));
  EXPECT_EQ(remnants_.bytes(), 5000u);
  remnants_.Release(owner_, absl::Minutes(10));
  EXPECT_NE(remnants_.Claim(owner_), nullptr);
  remnants_.Drop(owner_, "the job has its own");
  EXPECT_EQ(remnants_.bytes(), 0u);
}

TEST_F(RemnantsTest, AreOfOneOwner) {
  remnants_.Keep(owner_, Files(5000), absl::Minutes(10));
  EXPECT_EQ(remnants_.Claim({"job", "default", 1001}), nullptr);
  EXPECT_EQ(remnants_.Claim({"job", "other", 1000}), nullptr);
  remnants_.Keep({"job", "default", 1001}, Files(300), absl::Minutes(1));
  EXPECT_EQ(remnants_.bytes(), 5300u);
  world_.RunFor(absl::Minutes(2));
  EXPECT_EQ(remnants_.bytes(), 5000u);
}

TEST_F(RemnantsTest, ANewerOneTakesThePlace) {
  remnants_.Keep(owner_, Files(5000), absl::Minutes(10));
  world_.RunFor(absl::Minutes(9));
  remnants_.Keep(owner_, Files(200), absl::Minutes(10));
  EXPECT_EQ(remnants_.bytes(), 200u);
  world_.RunFor(absl::Minutes(9));
  EXPECT_EQ(remnants_.bytes(), 200u);  // with its own clock
  world_.RunFor(absl::Minutes(2));
  EXPECT_TRUE(remnants_.is_empty());
}

}  // namespace
}  // namespace ballast::daemon
