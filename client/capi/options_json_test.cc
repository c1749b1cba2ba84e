#include "client/capi/options_json.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::capi {
namespace {

using base::IsOk;
using base::StatusIs;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::string With(const std::string& more) {
  return R"({"job": "j", "optimizer": {"name": "sgd", "groups": [{"lr": 1}]})" +
         more + "}";
}

TEST(ParseOptionsTest, DefaultsAreOneRankExact) {
  const auto options = ParseOptions(With(""));
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->job.name(), "j");
  EXPECT_EQ(options->job.exchange().preset(), "exact");
  EXPECT_EQ(options->topology.world_size(), 1);
  EXPECT_EQ(options->job.optimizer().groups(0).lr(), 1);
  EXPECT_EQ(options->resume, v1::RESUME_AUTO);
  EXPECT_EQ(options->address, worker::kDefaultAddress);
}

TEST(ParseOptionsTest, TakesEveryKey) {
  const auto options = ParseOptions(R"({
      "job": "j", "tenant": "t", "address": "unix:///a", "token": "s",
      "rank": 3, "world_size": 4, "local_rank": 1, "local_world_size": 2,
      "node_rank": 1, "exchange": "exact", "gradient_clipping": 1.5,
      "bucket_bytes": 8192, "resume": "must", "hold_seconds": 7,
      "connect_timeout": 1, "open_timeout": 2.5,
      "optimizer": {"name": "adamw", "groups": [
        {"lr": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
         "weight_decay": 0.1, "momentum": 0, "dampening": 0,
         "nesterov": false, "lr_decay": 0.5,
         "initial_accumulator_value": 2}, {}]}})");
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->topology.rank(), 3);
  EXPECT_EQ(options->topology.node_rank(), 1);
  EXPECT_EQ(options->job.bucket_bytes(), 8192);
  EXPECT_EQ(options->job.optimizer().groups_size(), 2);
  EXPECT_EQ(options->job.optimizer().groups(0).beta2(), 0.95);
  EXPECT_EQ(options->job.optimizer().groups(0).lr_decay(), 0.5);
  EXPECT_EQ(options->job.optimizer().groups(0).initial_accumulator_value(), 2);
  EXPECT_EQ(options->resume, v1::RESUME_MUST);
  EXPECT_EQ(options->open_timeout, absl::Seconds(2.5));
}

TEST(ParseOptionsTest, UnknownKeysNameTheNearest) {  // I21
  EXPECT_THAT(ParseOptions(With(R"(, "word_size": 2)")),
              StatusIs(kInvalid,
                       "unknown option word_size; the nearest known one is "
                       "world_size"));
  EXPECT_THAT(ParseOptions(R"({"job": "j", "optimizer":
                  {"name": "sgd", "groups": [{"momentun": 1}]}})"),
              StatusIs(kInvalid, "momentum"));
}

TEST(ParseOptionsTest, WrongValuesNameTheKey) {
  EXPECT_THAT(ParseOptions(With(R"(, "rank": 1.5)")),
              StatusIs(kInvalid, "rank must be a 32-bit integer, not 1.5"));
  EXPECT_THAT(ParseOptions(With(R"(, "rank": 3000000000)")),
              StatusIs(kInvalid, "rank"));
  EXPECT_THAT(ParseOptions(With(R"(, "resume": "maybe")")),
              StatusIs(kInvalid, R"("auto", "never", "must")"));
  EXPECT_THAT(ParseOptions(With(R"(, "bucket_bytes": -1)")),
              StatusIs(kInvalid, "bucket_bytes"));
  EXPECT_THAT(ParseOptions(With(R"(, "open_timeout": 0)")),
              StatusIs(kInvalid, "open_timeout"));
}

TEST(ParseOptionsTest, SaysWhatIsMissing) {
  EXPECT_THAT(ParseOptions("{}"), StatusIs(kInvalid, "job is missing"));
  EXPECT_THAT(ParseOptions(R"({"job": "j"})"),
              StatusIs(kInvalid, "optimizer is missing"));
  EXPECT_THAT(ParseOptions(R"({"job": "j", "optimizer": {"name": "sgd"}})"),
              StatusIs(kInvalid, "name and groups"));
  EXPECT_THAT(ParseOptions("{"), StatusIs(kInvalid, "not valid JSON"));
  EXPECT_THAT(ParseOptions("[]"), StatusIs(kInvalid, "must be an object"));
}

}  // namespace
}  // namespace ballast::capi
