#include "server/snapshot/files/safetensors.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"
#include "server/snapshot/files/memory_file_system.h"

namespace ballast::snapshot {
namespace {

using base::IsOk;
using base::StatusIs;

std::string Prefixed(const std::string& json) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(static_cast<uint64_t>(json.size()) >> 8 * i);
  }
  return bytes + json;
}

// `json` in a file with `data_bytes` of data.
absl::Status Parse(const std::string& json, uint64_t data_bytes) {
  const std::string bytes = Prefixed(json);
  return ParseHeader(bytes, bytes.size() + data_bytes).status();
}

std::string Entry(const std::string& name, const std::string& dtype,
                  const std::string& shape, const std::string& offsets) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":[",
                      shape, "],\"data_offsets\":[", offsets, "]}");
}

const std::vector<Section>& Sections() {
  static const std::vector<Section> sections = {
      {"master:a[0:6]", ElementType::kF32, {2, 3}, 0, 24},
      {"empty", ElementType::kF32, {0, 7}, 24, 24},
      {"scalar", ElementType::kF32, {}, 24, 28},
      {"half", ElementType::kBF16, {3}, 28, 34},
      {"cursor:0", ElementType::kU8, {5}, 34, 39},
  };
  return sections;
}

TEST(SafetensorsTest, ReadsWhatItWrites) {
  const Metadata metadata = {{"a", "1"}, {"b", ""}};
  const std::string bytes = MakeHeader(Sections(), metadata);
  EXPECT_EQ(bytes.size() % 8, 0u);
  const auto header = ParseHeader(bytes, bytes.size() + 39);
  ASSERT_THAT(header.status(), IsOk());
  EXPECT_EQ(header->sections, Sections());
  EXPECT_EQ(header->metadata, metadata);
  EXPECT_EQ(header->data_begin, bytes.size());
  EXPECT_EQ(header->data_bytes(), 39u);
}

TEST(SafetensorsTest, ReadsAFile) {
  MemoryFileSystem files;
  auto file = files.Create("f");
  ASSERT_THAT(file.status(), IsOk());
  const std::string bytes = MakeHeader(Sections(), {}) + std::string(39, 'x');
  ASSERT_THAT((*file)->WriteAt(0, std::as_bytes(std::span(bytes))), IsOk());
  EXPECT_THAT(ReadHeader(**file).status(), IsOk());
  // Cut short anywhere, it is none.
  for (size_t size = 0; size < bytes.size(); ++size) {
    *files.Contents("f") = bytes.substr(0, size);
    EXPECT_THAT(ReadHeader(**file).status(),
                StatusIs(absl::StatusCode::kDataLoss))
        << size;
  }
  *files.Contents("f") = bytes + "y";
  EXPECT_THAT(ReadHeader(**file).status(),
              StatusIs(absl::StatusCode::kDataLoss, "40 of data"));
}

TEST(SafetensorsTest, BelievesNoSize) {  // I27
  MemoryFileSystem files;
  auto file = files.Create("f");
  // An allocation of any of these would end the process.
  for (const uint64_t size :
       {UINT64_MAX, UINT64_MAX - 7, uint64_t{1} << 60, uint64_t{1} << 48}) {
    std::string bytes = Prefixed("{}");
    for (int i = 0; i < 8; ++i) {
      bytes[i] = static_cast<char>(size >> (8 * i));
    }
    ASSERT_THAT((*file)->WriteAt(0, std::as_bytes(std::span(bytes))), IsOk());
    EXPECT_THAT(ReadHeader(**file).status(),
                StatusIs(absl::StatusCode::kDataLoss, "in a file"));
  }
}

TEST(SafetensorsTest, RefusesCraftedHeaders) {  // I27
  const std::string good = Entry("a", "F32", "2", "0,8");
  ASSERT_THAT(Parse("{" + good + "}", 8), IsOk());  // the control
  const struct {
    std::string json;
    std::string says;
  } cases[] = {
      {"", "not an object"},
      {"[]", "not an object"},
      {" {" + good + "}", "not an object"},
      {"{" + good, "no JSON"},
      {"{" + good + "}x", "no JSON"},
      {"{" + good + "," + good + "}", "\"a\""},
      {"{" + good + "," + Entry("b", "F32", "2", "4,12") + "}", "an overlap"},
      {"{" + Entry("a", "F32", "2", "8,16") + "}", "a gap"},
      {"{" + good + "," + Entry("b", "F32", "1", "12,16") + "}", "a gap"},
      {"{" + Entry("a", "F32", "1", "0,4") + "}", "the file has 8"},
      {"{" + Entry("a", "F32", "3", "0,12") + "}", "the file has 8"},
      {"{" + Entry("a", "F32", "3", "0,8") + "}", "needs 12 bytes"},
      {"{" + Entry("a", "F32", "2", "8,0") + "}", "needs 8 bytes"},
      {"{" + Entry("a", "F64", "1", "0,8") + "}", "dtype"},
      {"{" + Entry("a", "F32", "-2", "0,8") + "}", "negative"},
      {"{" + Entry("a", "F32", "2.0", "0,8") + "}", "fraction"},
      {"{" + Entry("a", "F32", "2", "0") + "}", "lacks"},
      {"{" + Entry("a", "F32", "2", "0,8,8") + "}", "cannot be"},
      {"{" + Entry("a", "F32", "[2]", "0,8") + "}", "list"},
      {"{" + Entry("a", "F32", "4294967296,4294967296,4", "0,8") + "}",
       "overflows"},
      {"{" + Entry("a", "F32", "9223372036854775807,2", "0,8") + "}",
       "overflows"},
      {"{" + Entry("a", "F32", "2", "0,18446744073709551616") + "}",
       "fraction"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "lacks"},
      {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],"
       "\"data_offsets\":[0,8]}}",
       "text"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"shape\":[],"
       "\"data_offsets\":[0,8]}}",
       "list"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],"
       "\"pickle\":1}}",
       "pickle"},
      {"{\"a\":null}", "null"},
      {"{\"a\":\"b\"}", "text"},
      {"{\"__metadata__\":{\"k\":{}}," + good + "}", "object"},
      {"{\"__metadata__\":{\"k\":1}," + good + "}", "number"},
      {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}," + good + "}", "twice"},
      {"{\"__metadata__\":{},\"__metadata__\":{}," + good + "}", "twice"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(Parse(c.json, 8), StatusIs(absl::StatusCode::kDataLoss, c.says))
        << c.json;
  }
  std::string deep = "{\"a\":";
  for (int i = 0; i < 100'000; ++i) deep += '[';
  EXPECT_THAT(Parse(deep, 8), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(SafetensorsTest, SurvivesEveryFlippedBit) {  // I27
  const std::string bytes = MakeHeader(Sections(), {{"k", "v"}});
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = bytes;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      const auto header = ParseHeader(flipped, flipped.size() + 39);
      // Another name is a good header too: the checksum is what tells.
      if (header.ok()) {
        EXPECT_NE(header->checksum, Checksum(bytes));
      }
    }
  }
}

TEST(SafetensorsTest, Hex) {
  uint64_t value = 0;
  EXPECT_TRUE(FromHex16(ToHex16(0x0123456789abcdef), &value));
  EXPECT_EQ(value, 0x0123456789abcdefu);
  EXPECT_FALSE(FromHex16("0123456789ABCDEF", &value));
  EXPECT_FALSE(FromHex16("0123456789abcde", &value));
  EXPECT_FALSE(FromHex16("0123456789abcdeg", &value));
}

}  // namespace
}  // namespace ballast::snapshot
