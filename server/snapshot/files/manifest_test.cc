#include "server/snapshot/files/manifest.h"

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"
#include "server/snapshot/files/safetensors.h"
#include "server/snapshot/files/snapshot_testing.h"

namespace ballast::snapshot {
namespace {

using base::IsOk;
using base::StatusIs;

Manifest Whole() {
  Manifest manifest = SmallManifest(2, 3);
  manifest.uid = 4'000'000'000;
  manifest.groups[0].lr = 0.1 + 0.2;  // no short decimal
  manifest.has_residuals = true;
  manifest.budget = {
      {.tensor = 0, .path = "weights", .codec = "int8", .calm = 99}};
  for (int n = 0; n < 2; ++n) {
    manifest.files.push_back({ShardName(n, 2), 100, 0xfedcba9876543210});
  }
  return manifest;
}

// The text with a change, and a checksum that fits it: a crafted one.
std::string Crafted(const std::string& from, const std::string& to) {
  const std::string text = ToText(Whole());
  const std::string changed = absl::StrReplaceAll(text, {{from, to}});
  EXPECT_NE(changed, text) << from;
  const std::string rest = changed.substr(13 + 16);
  return changed.substr(0, 13) + ToHex16(Checksum(rest)) + rest;
}

TEST(ManifestTest, ReadsWhatItWrites) {
  const auto manifest = ParseManifest(ToText(Whole()));
  ASSERT_THAT(manifest.status(), IsOk());
  EXPECT_EQ(*manifest, Whole());
}

// Written before there were residuals and a budget.
TEST(ManifestTest, ReadsVersion1) {
  Manifest old = Whole();
  old.has_residuals = false;
  old.budget.clear();
  std::string text = ToText(old);
  for (const char* line :
       {" \"has_residuals\": false,\n", " \"budget\": [],\n"}) {
    const size_t at = text.find(line);
    ASSERT_NE(at, std::string::npos) << line << text;
    text.erase(at, std::string(line).size());
  }
  const size_t version = text.find("\"version\": 2");
  ASSERT_NE(version, std::string::npos);
  text[version + 11] = '1';
  const std::string rest = text.substr(13 + 16);
  const auto manifest =
      ParseManifest(text.substr(0, 13) + ToHex16(Checksum(rest)) + rest);
  ASSERT_THAT(manifest.status(), IsOk());
  EXPECT_EQ(*manifest, old);
}

TEST(ManifestTest, NamesShards) {
  EXPECT_EQ(ShardName(1, 3), "shard-00001-of-00003.safetensors");
}

TEST(ManifestTest, FindsEveryFlippedBitAndEveryCut) {  // I27
  const std::string text = ToText(Whole());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string flipped = text;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << i % 8));
    EXPECT_THAT(ParseManifest(flipped).status(),
                StatusIs(absl::StatusCode::kDataLoss))
        << i;
    EXPECT_THAT(ParseManifest(text.substr(0, i)).status(),
                StatusIs(absl::StatusCode::kDataLoss))
        << i;
  }
}

TEST(ManifestTest, RefusesCraftedOnes) {  // I27
  const struct {
    const char* from;
    const char* to;
    const char* says;
  } cases[] = {
      {"\"calm\": 99", "\"calm\": -1", "calm"},
      {"\"tensor\": 0", "\"tensor\": 999", "tensor"},
      {"\"has_residuals\": true", "\"has_residuals\": 1", "has_residuals"},
      {"\"step\": 7", "\"step\": -7", "step"},
      {"\"step\": 7", "\"step\": 5", "optimizer_step"},
      {"\"step\": 7", "\"step\": 1e99", "step"},
      {"\"step\": 7", "\"step\": 7.5", "step"},
      {"\"step\": 7", "\"step\": \"7\"", "step"},
      {"\"step\": 7", "\"stop\": 7", "step"},
      {"\"nodes\": 2", "\"nodes\": 3", "files"},
      {"\"nodes\": 2", "\"nodes\": 2000000000", "nodes"},
      {"\"job\": \"job\"", "\"job\": \"../job\"", "job"},
      {"shard-00001-of-00002.safetensors", "../../../../etc/passwd",
       "instead of shard-00001"},
      {"\"b:bias\"", "\"a.weight\"", "twice"},
      {"\"b:bias\"", "\"b/../bias\"", "tensor"},
      {"\"bfloat16\"", "\"int64\"", "dtype"},
      {"\"adamw\"", "\"shampoo\"", "optimizer"},
      {"\"moments\": 2", "\"moments\": 3", "moments"},
      {"\"group\": 1", "\"group\": 2", "group"},
      {"fedcba9876543210", "FEDCBA9876543210", "checksum"},
      {"    3,\n    5", "    3,\n    4611686018427387904", "shape"},
      {"    3,\n    5", "    1000000,\n    1000000000", "shape"},
      {"\"trainable\": false", "\"trainable\": 0", "trainable"},
      {"\"lr\": 0.001", "\"lr\": null", "lr"},
      {"\"tenant\": \"default\",", "", "members"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(ParseManifest(Crafted(c.from, c.to)).status(),
                StatusIs(absl::StatusCode::kDataLoss, c.says))
        << c.from << " -> " << c.to;
  }
  std::string deep(100'000, '[');
  EXPECT_THAT(
      ParseManifest(Crafted("\"lr\": 0.001", "\"lr\": " + deep)).status(),
      StatusIs(absl::StatusCode::kDataLoss));
}

TEST(ManifestTest, SaysThatItIsOfALaterVersion) {
  EXPECT_THAT(
      ParseManifest(Crafted("\"version\": 2", "\"version\": 3")).status(),
      StatusIs(absl::StatusCode::kUnimplemented, "version 3"));
}

}  // namespace
}  // namespace ballast::snapshot
