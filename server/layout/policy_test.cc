#include "server/layout/policy.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::layout {
namespace {

using base::StatusIs;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(PolicyTest, PresetsAreThoseOfTheTable) {  // DESIGN 7.4
  EXPECT_EQ(*ParsePolicy("exact"), ExchangePolicy());
  const ExchangePolicy zeropp = *ParsePolicy("zeropp");
  EXPECT_EQ(zeropp.weights, (CodecChoice{CodecId::kInt8, {8, 256}}));
  EXPECT_EQ(zeropp.gradients, (CodecChoice{CodecId::kInt4, {4, 128}}));
  EXPECT_EQ(zeropp.gradients.block.range, kernels::Range::kSym);
  EXPECT_EQ(zeropp.gradients.block.rounding, kernels::Rounding::kNearest);
  EXPECT_EQ(zeropp.gradients.block.hadamard, 0);
}

TEST(PolicyTest, DeltaPresetsAreThoseOfTheTable) {  // DESIGN 7.4
  ExchangePolicy policy = *ParsePolicy("delta4");
  EXPECT_EQ(policy.weights, (CodecChoice{CodecId::kInt4, {4, 2048}}));
  EXPECT_EQ(policy.weight_mode, WeightMode::kDelta);
  EXPECT_EQ(policy.resync_every_steps, 1000);
  EXPECT_EQ(policy.gradients.codec, CodecId::kInt4);
  EXPECT_EQ(policy.gradients.block,
            (kernels::CodecSpec{.bits = 4, .block = 128, .hadamard = 32}));
  EXPECT_EQ(policy.opt_out_elements, kPresetOptOutElements);
  policy.weights = {CodecId::kInt2, {2, 2048}};
  EXPECT_EQ(policy, *ParsePolicy("delta2"));
  // The order of keys does not count.
  EXPECT_EQ(ParsePolicy("weights.codec=int2 weights.mode=delta")->weights,
            ParsePolicy("weights.mode=delta weights.codec=int2")->weights);
}

TEST(PolicyTest, KeysSayTheSameAsThePreset) {
  ExchangePolicy keys = *ParsePolicy(
      "weights.codec=int8 weights.mode=value weights.block=256 "
      "gradients.codec=int4 gradients.block=128 gradients.hadamard=0 "
      "gradients.range=sym gradients.rounding=nearest "
      "gradients.error_feedback=false secondary_partition=node "
      "partition_nodes=all max_relative_error=null seed=0 strict=true");
  EXPECT_EQ(keys.opt_out_elements, 0);  // of presets only
  keys.opt_out_elements = kPresetOptOutElements;
  EXPECT_EQ(keys, *ParsePolicy("zeropp"));
  EXPECT_EQ(PolicyDigest(keys), PolicyDigest(*ParsePolicy(" zeropp  seed=0")));
}

TEST(PolicyTest, EachKeyChangesThePolicyAndItsDigest) {
  const std::string texts[] = {"zeropp",
                               "zeropp weights.codec=none",
                               "zeropp weights.codec=int4",
                               "zeropp secondary_partition=none",
                               "zeropp secondary_partition=none "
                               "resident_bytes=1000000",
                               "zeropp partition_nodes=1",
                               "zeropp partition_nodes=2",
                               "zeropp weights.block=512",
                               "zeropp gradients.codec=int8",
                               "zeropp gradients.block=32",
                               "zeropp gradients.hadamard=32",
                               "zeropp gradients.range=clip16",
                               "zeropp gradients.rounding=stochastic",
                               "zeropp seed=18446744073709551615",
                               "zeropp gradients.error_feedback=true",
                               "zeropp max_relative_error=0.1",
                               "zeropp max_relative_error=0.2",
                               "zeropp metering.one_in=0",
                               "zeropp metering.one_in=1",
                               "zeropp override:*.bias=none",
                               "zeropp override:*.bias=int8",
                               "zeropp override:*.bias=none override:a=none",
                               "zeropp weights.mode=delta",
                               "delta4",
                               "delta4 weights.resync_every_steps=200",
                               "delta2",
                               "exact"};
  std::vector<ExchangePolicy> policies;
  std::vector<std::string> digests;
  for (const std::string& text : texts) {
    const auto policy = ParsePolicy(text);
    ASSERT_THAT(policy, base::IsOk()) << text;
    for (size_t i = 0; i < policies.size(); ++i) {
      EXPECT_NE(*policy, policies[i]) << text << " and " << texts[i];
      EXPECT_NE(PolicyDigest(*policy), digests[i]) << text;
    }
    policies.push_back(*policy);
    digests.push_back(PolicyDigest(*policy));
  }
}

TEST(PolicyTest, RefusesWithKeyValueAndRemedy) {  // I21
  const struct {
    std::string text;
    std::string says;
  } cases[] = {
      {"", "use \"exact\", \"zeropp\" or"},
      {"delta8", "\"delta8\" is unknown; this daemon serves"},
      {"Exact", "preset \"Exact\" is unknown"},
      {"exact zeropp", "a preset comes first"},
      {"zeropp weights.block", "is not KEY=VALUE"},
      {"zeropp weights.blok=256", "key \"weights.blok\" is unknown"},
      {"zeropp weights.block=100", "weights.block is \"100\", use a power"},
      {"zeropp weights.block=16", "from 32 to 2048"},
      {"zeropp weights.block=4096", "from 32 to 2048"},
      {"zeropp weights.block=256x", "\"256x\""},
      {"zeropp weights.block=99999999999", "weights.block"},
      {"zeropp weights.block=256 weights.block=256", "given twice"},
      {"weights.codec=int2", "needs weights.mode=delta"},
      {"delta2 weights.mode=value", "needs weights.mode=delta"},
      {"gradients.codec=int2", "deltas of weights only"},
      {"delta4 override:a=int2", "deltas of weights only"},
      {"weights.codec=fp8", "known are none, int8, int4"},
      {"weights.mode=delta", "but weights.codec is none"},
      {"weights.mode=deltas", "use value or delta"},
      {"delta4 weights.resync_every_steps=199", "from 200 on"},
      {"delta4 weights.resync_every_steps=x", "from 200 on"},
      {"zeropp weights.resync_every_steps=500", "needs weights.mode=delta"},
      {"weights.hadamard=32", "key \"weights.hadamard\" is unknown"},
      {"gradients.hadamard=64", "use 0 or 32"},
      {"gradients.range=asym", "use sym or clip16"},
      {"gradients.rounding=up", "use nearest or stochastic"},
      {"gradients.error_feedback=true", "but gradients.codec is none"},
      {"zeropp gradients.error_feedback=1", "use true or false"},
      {"secondary_partition=all", "use node or none"},
      {"delta4 secondary_partition=none", "use weights.mode=value or"},
      {"secondary_partition=none resident_bytes=0", "above 0"},
      {"secondary_partition=none resident_bytes=1G", "above 0"},
      {"resident_bytes=4096", "needs secondary_partition=none"},
      {"zeropp secondary_partition=none max_relative_error=0.1",
       "weights on every node"},
      {"partition_nodes=0", "partition_nodes is \"0\", use all, or how many"},
      {"partition_nodes=-2", "use all, or how many nodes"},
      {"partition_nodes=1025", "use all, or how many nodes"},
      {"partition_nodes=two", "use all, or how many nodes"},
      {"max_relative_error=0.1", "but no codec has an error"},
      {"zeropp max_relative_error=0", "max_relative_error is \"0\", use null"},
      {"zeropp max_relative_error=1", "between 0 and 1"},
      {"zeropp max_relative_error=nan", "between 0 and 1"},
      {"zeropp max_relative_error=ten", "between 0 and 1"},
      {"zeropp max_relative_error=0.1 metering.one_in=0", "measured errors"},
      {"strict=false", "use true"},
      {"metering.one_in=-1", "or 0 to measure none"},
      {"metering.one_in=1048577", "1 to 1048576"},
      {"seed=-1", "seed is \"-1\""},
      {"seed=", "seed is \"\""},
      {"override:=none", "no pattern"},
      {"override:a=int3", "override:a is \"int3\""},
      {std::string(10'000, 'x'), "at most 8192"},
  };
  for (const auto& [text, says] : cases) {
    EXPECT_THAT(ParsePolicy(text).status(), StatusIs(kInvalid, says)) << text;
  }
  std::string many = "zeropp";
  for (int i = 0; i < 65; ++i)
    absl::StrAppend(&many, " override:t", i, "=none");
  EXPECT_THAT(ParsePolicy(many).status(), StatusIs(kInvalid, "at most 64"));
}

TEST(PolicyTest, PartitionGroupsDivideTheNodes) {
  for (const int nodes : {1, 2, 3, 4, 12}) {
    EXPECT_THAT(CheckNodes(*ParsePolicy("exact"), nodes), base::IsOk());
    EXPECT_THAT(CheckNodes(*ParsePolicy("exact partition_nodes=1"), nodes),
                base::IsOk());
  }
  EXPECT_THAT(CheckNodes(*ParsePolicy("delta4 partition_nodes=3"), 12),
              base::IsOk());
  EXPECT_THAT(CheckNodes(*ParsePolicy("exact partition_nodes=4"), 6),
              StatusIs(kInvalid,
                       "partition_nodes is \"4\", which does not divide the "
                       "job's 6 nodes; use 1, 2, 3, or all"));
  EXPECT_THAT(CheckNodes(*ParsePolicy("exact partition_nodes=2"), 1),
              StatusIs(kInvalid, "does not divide the job's 1 nodes; use all"));
  // What a group's sum loses is fed back to nobody.
  const ExchangePolicy feedback =
      *ParsePolicy("zeropp gradients.error_feedback=true partition_nodes=2");
  EXPECT_THAT(CheckNodes(feedback, 2), base::IsOk());  // all of them
  EXPECT_THAT(CheckNodes(feedback, 4),
              StatusIs(kInvalid,
                       "gradients.error_feedback is \"true\", but "
                       "partition_nodes is 2 of 4 nodes"));
}

TEST(PolicyTest, PresetsLeaveSmallTensorsAlone) {
  const ExchangePolicy zeropp = *ParsePolicy("zeropp");
  for (const int64_t size : {0, 1, 16 << 10}) {
    EXPECT_FALSE(CodecsOf(zeropp, "w", size).weights.quantizes());
    EXPECT_FALSE(CodecsOf(zeropp, "w", size).gradients.quantizes());
  }
  const TensorCodecs large = CodecsOf(zeropp, "w", (16 << 10) + 1);
  EXPECT_EQ(large.weights, zeropp.weights);
  EXPECT_EQ(large.gradients, zeropp.gradients);
  const ExchangePolicy keys = *ParsePolicy("gradients.codec=int4");
  EXPECT_TRUE(CodecsOf(keys, "w", 1).gradients.quantizes());
  EXPECT_FALSE(CodecsOf(keys, "w", 1).weights.quantizes());
}

TEST(PolicyTest, TheLastOverrideThatMatchesCounts) {
  const ExchangePolicy policy =
      *ParsePolicy("zeropp override:*.norm.*=none override:h.?.norm.w=int8");
  EXPECT_FALSE(CodecsOf(policy, "h.10.norm.w", 1 << 20).weights.quantizes());
  EXPECT_EQ(CodecsOf(policy, "h.1.mlp.w", 1 << 20).weights, policy.weights);
  // An override names a tensor, so its size is no excuse.
  const TensorCodecs codecs = CodecsOf(policy, "h.1.norm.w", 5);
  EXPECT_EQ(codecs.gradients, (CodecChoice{CodecId::kInt8, {8, 128}}));
  EXPECT_EQ(codecs.weights, (CodecChoice{CodecId::kInt8, {8, 256}}));
}

TEST(PolicyTest, Patterns) {
  const struct {
    std::string pattern, name;
    bool matches;
  } cases[] = {{"", "", true},
               {"", "a", false},
               {"*", "", true},
               {"*", "abc", true},
               {"a", "a", true},
               {"a", "ab", false},
               {"?", "", false},
               {"?", "a", true},
               {"a*c", "abbc", true},
               {"a*c", "abcb", false},
               {"*b*", "abc", true},
               {"*.bias", "h.bias", true},
               {"*.bias", "h.bias.x", false},
               {"**a", "bba", true},
               {"a?c*", "abcd", true},
               {"a?c*", "ac", false}};
  for (const auto& [pattern, name, matches] : cases) {
    EXPECT_EQ(MatchesPattern(pattern, name), matches) << pattern << " " << name;
  }
}

TEST(PolicyTest, AChoiceWithAnotherCodecKeepsTheRest) {
  const CodecChoice int4 = ParsePolicy("delta4")->gradients;
  const CodecChoice int8 = int4.With(CodecId::kInt8);
  EXPECT_EQ(int8.block.bits, 8);
  EXPECT_EQ(int8.block.hadamard, int4.block.hadamard);
  EXPECT_EQ(int8.With(CodecId::kInt4), int4);
  EXPECT_FALSE(int4.With(CodecId::kNone).quantizes());
}

}  // namespace
}  // namespace ballast::layout
