#include "server/snapshot/files/snapshot_reader.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"
#include "server/snapshot/files/memory_file_system.h"
#include "server/snapshot/files/snapshot_testing.h"

namespace ballast::snapshot {
namespace {

using base::IsOk;
using base::StatusIs;

constexpr char kPath[] = "job/step-00000007";

absl::Status ReadAll(FileSystem& files) {
  auto reader = SnapshotReader::Open(files, kPath);
  if (!reader.ok()) return reader.status();
  return (*reader)->Read(
      [](const StoredSection&) { return true; },
      [](const StoredSection&, uint64_t, std::span<const std::byte>) {
        return absl::OkStatus();
      });
}

TEST(SnapshotReaderTest, GivesEveryElementOnce) {  // I17
  for (const int nodes : {1, 2, 5}) {
    MemoryFileSystem files;
    WriteSmallSnapshot(files, nodes, 2, "step-00000007");
    auto reader = SnapshotReader::Open(files, kPath);
    ASSERT_THAT(reader.status(), IsOk());
    std::map<std::pair<Kind, int>, std::map<int64_t, float>> seen;
    std::map<int, std::string> cursors;
    ASSERT_THAT(
        (*reader)->Read([](const StoredSection&) { return true; },
                        [&](const StoredSection& section, uint64_t offset,
                            std::span<const std::byte> bytes) {
                          if (section.kind == Kind::kCursor) {
                            cursors[section.tensor].append(
                                reinterpret_cast<const char*>(bytes.data()),
                                bytes.size());
                          } else if (section.kind != Kind::kPublished) {
                            for (size_t i = 0; i < bytes.size(); i += 4) {
                              float value;
                              std::memcpy(&value, bytes.data() + i, 4);
                              seen[{section.kind, section.tensor}]
                                  [section.begin + (offset + i) / 4] = value;
                            }
                          }
                          return absl::OkStatus();
                        }),
        IsOk());
    for (const Kind kind : {Kind::kMaster, Kind::kM, Kind::kV}) {
      for (const auto& [tensor, size] : {std::pair(0, 15), std::pair(2, 4)}) {
        const auto& values = seen[{kind, tensor}];
        ASSERT_EQ(values.size(), static_cast<size_t>(size));
        for (const auto& [element, value] : values) {
          EXPECT_EQ(value, ValueAt(kind, tensor, element));
        }
      }
    }
    EXPECT_EQ(cursors.size(), static_cast<size_t>(2 * nodes));
    EXPECT_EQ(cursors[1], "cursor of 1");
  }
}

TEST(SnapshotReaderTest, FindsEveryFlippedBit) {  // I17, I27
  MemoryFileSystem files;
  const Manifest manifest = WriteSmallSnapshot(files, 2, 1, "step-00000007");
  ASSERT_THAT(ReadAll(files), IsOk());
  for (const FileInfo& info : manifest.files) {
    std::string& bytes = *files.Contents(absl::StrCat(kPath, "/", info.name));
    for (size_t i = 0; i < bytes.size(); ++i) {
      const char old = bytes[i];
      bytes[i] = static_cast<char>(old ^ (1 << i % 8));
      EXPECT_THAT(ReadAll(files), StatusIs(absl::StatusCode::kDataLoss))
          << info.name << " " << i;
      bytes[i] = old;
    }
  }
  EXPECT_THAT(ReadAll(files), IsOk());
}

TEST(SnapshotReaderTest, FindsEveryCut) {
  MemoryFileSystem files;
  const Manifest manifest = WriteSmallSnapshot(files, 2, 1, "step-00000007");
  std::string& bytes =
      *files.Contents(absl::StrCat(kPath, "/", manifest.files[1].name));
  const std::string whole = bytes;
  for (size_t size = 0; size < whole.size(); ++size) {
    bytes = whole.substr(0, size);
    EXPECT_THAT(ReadAll(files),
                StatusIs(absl::StatusCode::kDataLoss, "cut short"))
        << size;
  }
}

TEST(SnapshotReaderTest, FindsFilesThatAreMissingOrAnothers) {
  MemoryFileSystem files;
  const Manifest manifest = WriteSmallSnapshot(files, 2, 1, "step-00000007");
  const std::string first = absl::StrCat(kPath, "/", manifest.files[0].name);
  const std::string second = absl::StrCat(kPath, "/", manifest.files[1].name);
  // The same size and a good header, but of the other node.
  const std::string kept = *files.Contents(second);
  *files.Contents(second) = *files.Contents(first);
  files.Contents(second)->resize(kept.size());
  EXPECT_THAT(ReadAll(files),
              StatusIs(absl::StatusCode::kDataLoss, manifest.files[1].name));
  *files.Contents(second) = kept;
  ASSERT_THAT(files.Rename(second, absl::StrCat(kPath, "/other")), IsOk());
  EXPECT_THAT(ReadAll(files),
              StatusIs(absl::StatusCode::kDataLoss, "is not there"));
}

// Good checksums everywhere: only what the sections say is wrong.
absl::Status WithShards(const std::vector<std::vector<SmallSection>>& shards) {
  MemoryFileSystem files;
  Manifest manifest = SmallManifest(static_cast<int>(shards.size()), 1);
  EXPECT_THAT(files.MakeDirectories(kPath), IsOk());
  for (size_t n = 0; n < shards.size(); ++n) {
    const std::string bytes = ShardBytes(shards[n]);
    const std::string name = ShardName(static_cast<int>(n), manifest.num_nodes);
    const std::string path = absl::StrCat(kPath, "/", name);
    EXPECT_THAT(WriteWhole(files, path, bytes), IsOk());
    auto file = files.Open(path);
    const auto header = ReadHeader(**file);
    if (!header.ok()) return header.status();
    manifest.files.push_back({name, bytes.size(), header->checksum});
  }
  EXPECT_THAT(WriteWhole(files, absl::StrCat(kPath, "/", kManifestName),
                         ToText(manifest)),
              IsOk());
  return ReadAll(files);
}

TEST(SnapshotReaderTest, RefusesCraftedShards) {  // I27
  const Manifest manifest = SmallManifest(1, 1);
  const std::vector<SmallSection> good = SectionsOf(manifest, 0);
  ASSERT_THAT(WithShards({good}), IsOk());  // the control
  const auto refused = [&](const char* says, auto change) {
    std::vector<SmallSection> sections = good;
    change(sections);
    EXPECT_THAT(WithShards({sections}),
                StatusIs(absl::StatusCode::kDataLoss, says));
  };
  refused("once", [](auto& s) { s.erase(s.begin()); });
  refused("cursors of rank 0", [](auto& s) { s.pop_back(); });
  refused("no rank", [](auto& s) { s.back().name.rank = 1; });
  refused("no rank", [](auto& s) { s.back().bytes.resize(70'000); });
  refused("no array", [](auto& s) { s[0].name.tensor = "other"; });
  refused("no array", [](auto& s) { s[0].name.tensor = "frozen"; });
  refused("no array", [](auto& s) { s[0].name.end = 16; });
  refused("another dtype", [](auto& s) { s[0].name.end = 14; });
  refused("another dtype", [](auto& s) {
    s[0].type = ElementType::kBF16;
    s[0].bytes.resize(30);
  });
  refused("once", [](auto& s) {  // a hole in the middle
    s[0].name.end = 7;
    s[0].bytes.resize(28);
  });
  refused("twice", [](auto& s) {  // the last one, again
    SmallSection more = s[s.size() - 2];
    more.name.begin = 1;
    more.bytes.resize(2);
    s.push_back(more);
  });
  refused("once", [](auto& s) {  // an overlap inside
    SmallSection more = s[0];
    more.name.begin = 3;
    more.name.end = 5;
    more.bytes.resize(8);
    s.push_back(more);
  });
}

TEST(SnapshotReaderTest, StopsWhenItIsGivenUp) {
  MemoryFileSystem files;
  WriteSmallSnapshot(files, 1, 1, "step-00000007");
  auto reader = SnapshotReader::Open(files, kPath);
  ASSERT_THAT(reader.status(), IsOk());
  std::atomic<bool> cancelled = true;
  EXPECT_THAT((*reader)->Read(
                  [](const StoredSection&) { return true; },
                  [](const StoredSection&, uint64_t,
                     std::span<const std::byte>) { return absl::OkStatus(); },
                  &cancelled),
              StatusIs(absl::StatusCode::kCancelled));
}

}  // namespace
}  // namespace ballast::snapshot
