#include "server/snapshot/files/export.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"
#include "server/snapshot/files/memory_file_system.h"
#include "server/snapshot/files/snapshot_testing.h"

namespace ballast::snapshot {
namespace {

using base::IsOk;
using base::StatusIs;

std::string Export(int nodes, int workers, ExportContent content) {
  MemoryFileSystem files;
  WriteSmallSnapshot(files, nodes, workers, "best");
  auto reader = SnapshotReader::Open(files, "job/best");
  EXPECT_THAT(reader.status(), IsOk());
  MemoryFileSystem out;
  const auto size = ExportSnapshot(**reader, content, out, "model.safetensors");
  EXPECT_THAT(size.status(), IsOk());
  EXPECT_EQ(out.List("")->size(), 1u);  // no draft is left
  const std::string bytes = *out.Contents("model.safetensors");
  EXPECT_EQ(*size, bytes.size());
  return bytes;
}

TEST(ExportTest, WritesWeightsInTheirDtype) {
  const std::string bytes = Export(3, 1, ExportContent::kWeights);
  MemoryFileSystem files;
  ASSERT_THAT(WriteWhole(files, "f", bytes), IsOk());
  const auto header = ReadHeader(**files.Open("f"));
  ASSERT_THAT(header.status(), IsOk());
  EXPECT_EQ(header->metadata.at("format"), "pt");
  ASSERT_EQ(header->sections.size(), 4u);
  for (const Section& section : header->sections) {
    const std::string data =
        bytes.substr(header->data_begin + section.begin, section.size_bytes());
    if (section.name == "a.weight") {
      EXPECT_EQ(section.shape, (std::vector<int64_t>{3, 5}));
      EXPECT_EQ(data, BytesOf(Kind::kMaster, 0, 0, 15, ElementType::kF32));
    } else if (section.name == "b:bias") {  // these fit into a bf16
      EXPECT_EQ(section.type, ElementType::kBF16);
      EXPECT_EQ(data, BytesOf(Kind::kMaster, 2, 0, 4, ElementType::kBF16));
    } else if (section.name == "frozen") {
      EXPECT_EQ(data, BytesOf(Kind::kPublished, 3, 0, 2, ElementType::kF16));
    } else {
      EXPECT_EQ(section.name, "empty");
    }
  }
}

TEST(ExportTest, IsTheSameHoweverItWasSaved) {  // I17
  for (const auto content : {ExportContent::kWeights, ExportContent::kState}) {
    const std::string once = Export(1, 1, content);
    EXPECT_EQ(Export(2, 3, content), once);
    EXPECT_EQ(Export(5, 1, content), once);
    EXPECT_EQ(Export(16, 1, content), once);  // more nodes than elements
  }
  EXPECT_NE(Export(1, 1, ExportContent::kState),
            Export(1, 1, ExportContent::kWeights));
}

TEST(ExportTest, LeavesNothingAfterAFailure) {
  MemoryFileSystem files;
  const Manifest manifest = WriteSmallSnapshot(files, 2, 1, "best");
  MemoryFileSystem out;
  {
    auto reader = SnapshotReader::Open(files, "job/best");
    out.set_capacity(100);
    EXPECT_THAT(ExportSnapshot(**reader, ExportContent::kState, out, "m"),
                StatusIs(absl::StatusCode::kResourceExhausted));
  }
  EXPECT_TRUE(out.List("")->empty());
  out.set_capacity(UINT64_MAX);
  std::string& bytes = *files.Contents("job/best/" + manifest.files[1].name);
  auto reader = SnapshotReader::Open(files, "job/best");
  bytes[bytes.size() - 40] ^= 1;
  EXPECT_THAT(ExportSnapshot(**reader, ExportContent::kState, out, "m"),
              StatusIs(absl::StatusCode::kDataLoss, "checksum"));
  EXPECT_TRUE(out.List("")->empty());
  bytes[bytes.size() - 40] ^= 1;
  EXPECT_THAT(ExportSnapshot(**reader, ExportContent::kState, out, "m"),
              IsOk());
  EXPECT_THAT(ExportSnapshot(**reader, ExportContent::kState, out, "m"),
              StatusIs(absl::StatusCode::kAlreadyExists));
}

// What lies beside or at the name asked for is somebody's.
TEST(ExportTest, RemovesNothingThatItDidNotMake) {
  MemoryFileSystem files;
  WriteSmallSnapshot(files, 2, 1, "best");
  const auto reader = SnapshotReader::Open(files, "job/best");
  MemoryFileSystem out;
  const std::vector<std::string> theirs = {"m.tmp", "m.ballast-draft-0",
                                           "m.ballast-draft-1", "taken"};
  for (const std::string& name : theirs) {
    ASSERT_THAT(out.MakeDirectories(name), IsOk());
    ASSERT_THAT(WriteWhole(out, name + "/file", name), IsOk());
  }
  EXPECT_THAT(ExportSnapshot(**reader, ExportContent::kWeights, out, "taken"),
              StatusIs(absl::StatusCode::kAlreadyExists, "take another name"));
  EXPECT_EQ(out.List("")->size(), theirs.size());
  out.set_capacity(out.bytes() + 100);
  EXPECT_THAT(ExportSnapshot(**reader, ExportContent::kWeights, out, "m"),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(out.List("")->size(), theirs.size());
  out.set_capacity(UINT64_MAX);
  EXPECT_THAT(ExportSnapshot(**reader, ExportContent::kWeights, out, "m"),
              IsOk());
  EXPECT_EQ(out.List("")->size(), theirs.size() + 1);
  for (const std::string& name : theirs) {
    EXPECT_EQ(*out.Contents(name + "/file"), name);
  }
  for (int n = 0; n < 100; ++n) {
    ASSERT_THAT(out.MakeDirectories(absl::StrCat("x.ballast-draft-", n)),
                IsOk());
  }
  EXPECT_THAT(
      ExportSnapshot(**reader, ExportContent::kWeights, out, "x"),
      StatusIs(absl::StatusCode::kAlreadyExists, "x.ballast-draft-0 to 99"));
}

}  // namespace
}  // namespace ballast::snapshot
