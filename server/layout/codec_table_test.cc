#include "server/layout/codec_table.h"

#include "gtest/gtest.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"

namespace ballast::layout {
namespace {

TEST(CodecTableTest, EveryRowIsFoundByIdAndName) {
  for (const CodecRow& row : CodecTable()) {
    EXPECT_EQ(FindCodec(row.id), &row) << "an id twice: " << row.name;
    EXPECT_EQ(FindCodec(row.name), &row) << "a name twice: " << row.name;
    EXPECT_EQ(Name(row.id), row.name);
    EXPECT_NE(row.payload, nullptr);
  }
  EXPECT_EQ(FindCodec(CodecId{200}), nullptr);
  EXPECT_EQ(FindCodec("fp8"), nullptr);
  EXPECT_EQ(Name(CodecId{200}), "unknown");
}

// Numbers that votes and records of jobs hold.
TEST(CodecTableTest, IdsStay) {
  EXPECT_EQ(FindCodec("none")->id, CodecId{0});
  EXPECT_EQ(FindCodec("int8")->id, CodecId{1});
  EXPECT_EQ(FindCodec("int4")->id, CodecId{2});
  EXPECT_EQ(FindCodec("int2")->id, CodecId{3});
}

TEST(CodecTableTest, WiderOnesFormALadder) {
  for (const CodecRow& row : CodecTable()) {
    const CodecRow& wider = *FindCodec(Wider(row.id));
    if (row.id == CodecId::kNone) {
      EXPECT_EQ(wider.id, row.id);
      continue;
    }
    EXPECT_GT(wider.bits, row.bits) << row.name;
    EXPECT_EQ(Narrower(wider.id), row.id) << "as many bits twice: " << row.name;
    EXPECT_TRUE(IsNarrower(row.id, wider.id));
    EXPECT_FALSE(IsNarrower(wider.id, row.id));
    EXPECT_FALSE(IsNarrower(row.id, row.id));
    // Where this one may be used, an error budget puts that one.
    EXPECT_GE(wider.for_gradients, row.for_gradients) << row.name;
    EXPECT_GE(wider.for_values, row.for_values) << row.name;
    EXPECT_GE(wider.for_deltas, row.for_deltas) << row.name;
  }
  EXPECT_EQ(Narrower(CodecId::kInt2), CodecId::kInt2);
}

TEST(CodecTableTest, PayloadIsCodesAndScales) {
  const auto payload = [](CodecId codec, int bits, int64_t count) {
    return FindCodec(codec)->payload({bits, 128}, kernels::DType::kBFloat16,
                                     count);
  };
  EXPECT_EQ(payload(CodecId::kNone, 8, 5), 10);
  EXPECT_EQ(payload(CodecId::kInt8, 8, 129), 129 + 8);
  EXPECT_EQ(payload(CodecId::kInt4, 4, 129), 65 + 8);
  EXPECT_EQ(payload(CodecId::kInt2, 2, 129), 33 + 8);
  for (const CodecRow& row : CodecTable()) {
    EXPECT_EQ(row.payload({}, kernels::DType::kFloat32, 0), 0) << row.name;
  }
}

TEST(CodecTableTest, NamesThemInWords) {
  EXPECT_EQ(CodecNames([](const CodecRow&) { return false; }, "or"), "");
  EXPECT_EQ(
      CodecNames([](const CodecRow& row) { return row.id == CodecId::kInt4; },
                 "or"),
      "int4");
  const auto either = [](const CodecRow& row) {
    return row.id == CodecId::kNone || row.id == CodecId::kInt8;
  };
  EXPECT_EQ(CodecNames(either, "or"), "none or int8");
}

}  // namespace
}  // namespace ballast::layout
