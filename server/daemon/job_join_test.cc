#include "server/daemon/job_join.h"

#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"
#include "server/membership/join_rules.h"

namespace ballast::daemon {
namespace {

using testing::AllOf;
using testing::HasSubstr;

session::JobSpec Spec() {
  session::JobSpec spec;
  spec.name = "job";
  spec.tensors = {{.name = "w", .shape = {5000}}};
  spec.groups = {kernels::HyperParameters{}};
  spec.bucket_bytes = 8192;
  return spec;
}

v1::Join Join(const session::JobSpec& spec,
              absl::Duration default_hold = absl::Minutes(10)) {
  layout::Options options;
  options.bucket_bytes = spec.bucket_bytes;
  const auto layout = layout::Layout::Create(spec.tensors, {2, 1}, 1, options);
  EXPECT_THAT(layout, base::IsOk());
  const auto policy = layout::ParsePolicy(spec.exchange);
  EXPECT_THAT(policy, base::IsOk());
  return MakeJoin(spec, *layout, *policy, default_hold, {});
}

std::string Difference(const v1::Join& first, const v1::Join& other) {
  return membership::JoinDifference(2, first, 1, other);
}

TEST(JobJoinTest, EveryOptionIsNamedWithBothValuesAndNodes) {
  struct Case {
    std::function<void(session::JobSpec&)> change;
    const char* here;
    const char* there;
  };
  const Case cases[] = {
      {[](auto& s) { s.tenant = "b"; }, "tenant is b on node 1",
       "default on node 0"},
      {[](auto& s) { s.optimizer = kernels::OptimizerKind::kAdamW; },
       "optimizer is adamw on node 1", "sgd on node 0"},
      {[](auto& s) { s.groups[0].momentum = 0.5; },
       "use of momentum is yes on node 1", "no on node 0"},
      {[](auto& s) { s.gradient_clipping = 0.1 + 0.2; },
       "gradient_clipping is 0.30000000000000004 on node 1", "0 on node 0"},
      {[](auto& s) { s.exchange = "zeropp"; },
       "exchange is \"zeropp\" on node 1", "\"exact\" on node 0"},
      {[](auto& s) { s.bucket_bytes = 16384; },
       "bucket_bytes is 16384 on node 1", "8192 on node 0"},
      {[](auto& s) {
         s.stored = session::StoredJob{"job/best", 5, 7};
       },
       "stored state is \"job/best\" of step 7 on node 1", "none on node 0"},
      {[](auto& s) { s.hold = absl::Minutes(5); }, "hold is 5m on node 1",
       "10m (the daemon's jobs.hold) on node 0"},
  };
  for (const Case& c : cases) {
    session::JobSpec other = Spec();
    c.change(other);
    EXPECT_THAT(Difference(Join(Spec()), Join(other)),
                AllOf(HasSubstr(c.here), HasSubstr(c.there)));
  }
}

TEST(JobJoinTest, DaemonsKeepTheSame) {
  session::JobSpec spec = Spec();
  spec.asks_nodes = true;
  const auto layout =
      layout::Layout::Create(spec.tensors, {2, 1}, 1, {.bucket_bytes = 8192});
  const auto join = [&](bool keeps_snapshots, bool keeps_replicas) {
    return MakeJoin(spec, *layout, *layout::ParsePolicy(spec.exchange),
                    absl::Minutes(10), {}, keeps_snapshots, keeps_replicas);
  };
  EXPECT_THAT(Difference(join(true, false), join(false, false)),
              HasSubstr("snapshots is off on node 1 but on on node 0"));
  EXPECT_THAT(Difference(join(false, false), join(false, true)),
              HasSubstr("replicas is on on node 1 but off on node 0"));
  EXPECT_EQ(Difference(join(true, true), join(true, true)), "");
}

TEST(JobJoinTest, TheSameInOtherWordsIsNoDifference) {
  session::JobSpec other = Spec();
  other.exchange = "exact seed=0";
  other.hold = absl::Seconds(600);
  EXPECT_EQ(Difference(Join(Spec()), Join(other)), "");
}

TEST(JobJoinTest, DaemonsWithOtherDefaultsContradictEachOther) {
  EXPECT_THAT(Difference(Join(Spec()), Join(Spec(), absl::Minutes(1))),
              HasSubstr("hold is 1m (the daemon's jobs.hold) on node 1"));
}

}  // namespace
}  // namespace ballast::daemon
