#include "server/base/names.h"

#include <string>

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::base {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(NamesTest, AcceptsJobAndTenantNames) {
  for (const std::string& name :
       {std::string("gpt2"), std::string("a"), std::string("7"),
        std::string("My-Job_1.2"), std::string(63, 'x')}) {
    EXPECT_THAT(CheckJobName(name), IsOk()) << name;
    EXPECT_THAT(CheckTenantName(name), IsOk()) << name;
  }
}

// I26, I27: nothing that could leave a directory, a label or a log line.
TEST(NamesTest, RefusesOtherJobNames) {
  for (const std::string& name :
       {std::string(), std::string(64, 'x'), std::string("a/b"),
        std::string(".hidden"), std::string("-flag"), std::string("_x"),
        std::string("a b"), std::string("a..b"), std::string("a\nb"),
        std::string("a\0b", 3), std::string("a\"b"), std::string("é")}) {
    EXPECT_THAT(CheckJobName(name), StatusIs(kInvalid)) << name;
    EXPECT_THAT(CheckTenantName(name), StatusIs(kInvalid)) << name;
  }
}

TEST(NamesTest, AcceptsParameterNamesOfKnownFrameworks) {
  EXPECT_THAT(CheckTensorName(std::string(255, 'x')), IsOk());
  for (const std::string_view name :
       {"wte", "transformer.h.0.attn.c_attn.weight", "_orig_mod.lm_head.bias",
        "module._fsdp_wrapped_module.w", "dense/kernel:0", "0.weight",
        "layers.1.self-attn.q", "tied_modules.embed.word_embeddings.weight"}) {
    EXPECT_THAT(CheckTensorName(name), IsOk()) << name;
  }
}

TEST(NamesTest, RefusesOtherTensorNames) {
  for (const std::string& name :
       {std::string(), std::string(256, 'x'), std::string("/etc/passwd"),
        std::string("-x"), std::string(".x"), std::string("a/../b"),
        std::string("a..b"), std::string("a//b"), std::string("a/"),
        std::string("a/.b"), std::string("a b"), std::string("a\tb"),
        std::string("a\0", 2)}) {
    EXPECT_THAT(CheckTensorName(name), StatusIs(kInvalid)) << name;
  }
}

TEST(NamesTest, ErrorsNameValueRuleAndRemedy) {
  const std::string text(CheckJobName("a b").message());
  EXPECT_THAT(text, HasSubstr("\"a b\""));
  EXPECT_THAT(text, HasSubstr("byte 1"));
  EXPECT_THAT(text, HasSubstr("use 1 to 63 letters"));
}

TEST(NamesTest, QuotedIsPrintableAndShort) {
  EXPECT_EQ(Quoted("a\nb"), "\"a\\nb\"");
  const std::string quoted = Quoted(std::string(100'000, '\x01'));
  EXPECT_LT(quoted.size(), 300u);
  EXPECT_THAT(quoted, Not(HasSubstr("\x01")));
}

}  // namespace
}  // namespace ballast::base
