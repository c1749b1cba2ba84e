#include "server/snapshot/files/catalog.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/random.h"
#include "server/base/status_matchers.h"
#include "server/snapshot/files/memory_file_system.h"
#include "server/snapshot/files/snapshot_testing.h"

namespace ballast::snapshot {
namespace {

using base::IsOk;
using base::StatusIs;
using testing::ElementsAre;

void WriteStep(FileSystem& files, int64_t step, const std::string& name = "") {
  Manifest manifest = SmallManifest(2, 1);
  manifest.step = manifest.optimizer_step = step;
  manifest.id = absl::StrCat("id-", step);
  WriteShards(files, &manifest);
  ASSERT_THAT(PublishSnapshot(files, manifest,
                              name.empty() ? StepName(step) : name, kTestLife),
              IsOk());
}

std::vector<std::string> Names(FileSystem& files) {
  std::vector<std::string> names;
  const auto entries = files.List("job");
  if (!entries.ok()) return names;
  for (const DirectoryEntry& entry : *entries) names.push_back(entry.name);
  return names;
}

TEST(CatalogTest, Names) {
  EXPECT_EQ(StepName(123), "step-00000123");
  EXPECT_TRUE(IsStepName("step-123456789"));
  EXPECT_FALSE(IsStepName("step-123"));
  EXPECT_FALSE(IsStepName("step-best-of-all"));
  EXPECT_EQ(*ResolvePath("job", "best"), "job/best");
  EXPECT_EQ(*ResolvePath("job", "other/best"), "other/best");
  for (const char* bad :
       {"", "..", "../x", "a/b/c", "/etc/x", ".tmp-1", "a/"}) {
    EXPECT_THAT(ResolvePath("job", bad).status(),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << bad;
  }
}

TEST(CatalogTest, ListsAndFindsTheNewest) {
  MemoryFileSystem files;
  EXPECT_FALSE((*FindNewest(files, "job")).has_value());
  WriteStep(files, 9);
  WriteStep(files, 8, "best");
  WriteStep(files, 10);
  ASSERT_THAT(files.MakeDirectories("job/.tmp-x"), IsOk());
  const auto entries = *ListAllSnapshots(files);
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].path(), "job/best");
  EXPECT_EQ(entries[2].step, 10);
  EXPECT_EQ(entries[2].world_size, 2);
  EXPECT_GT(entries[2].size_bytes, 100u);
  EXPECT_EQ((*FindNewest(files, "job"))->name, "step-00000010");
  // One that is damaged might be the newest.
  *files.Contents("job/best/manifest.json") += "x";
  EXPECT_THAT(FindNewest(files, "job").status(),
              StatusIs(absl::StatusCode::kDataLoss, "job/best"));
}

TEST(CatalogTest, ReplacesOneOfTheSameName) {
  MemoryFileSystem files;
  WriteStep(files, 3, "best");
  WriteStep(files, 4, "best");
  EXPECT_THAT(Names(files), ElementsAre("best"));
  EXPECT_EQ((*FindNewest(files, "job"))->step, 4);
}

// Two renames take the place of one: the one before is there until then, even
// if nobody goes on, or is found where it was put aside.
TEST(CatalogTest, ACrashWhileOneIsReplacedLosesNone) {  // I2
  int64_t changes = 0;
  {
    MemoryFileSystem files;
    WriteStep(files, 1, "last");
    Manifest manifest = SmallManifest(2, 1);
    manifest.id = "id-2";
    WriteShards(files, &manifest);
    const int64_t before = files.changes();
    ASSERT_THAT(PublishSnapshot(files, manifest, "last", kTestLife), IsOk());
    changes = files.changes() - before;
  }
  int aside = 0;
  for (int64_t at = 0; at <= changes; ++at) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
      MemoryFileSystem files;
      WriteStep(files, 1, "last");
      Manifest manifest = SmallManifest(2, 1);
      manifest.step = manifest.optimizer_step = 2;
      manifest.id = "id-2";
      WriteShards(files, &manifest);
      files.FailAfter(at);
      const bool is_published =
          PublishSnapshot(files, manifest, "last", kTestLife).ok();
      base::SeededRandom random(seed);
      if (seed % 2 == 0) {
        files.Crash(&random);
      } else {
        files.FailAfter(INT64_MAX);  // the writer heard of it, and lives
      }
      for (const bool is_restored : {false, true}) {
        const auto newest = FindNewest(files, "job");
        ASSERT_THAT(newest.status(), IsOk()) << at << " " << seed;
        ASSERT_TRUE(newest->has_value()) << at << " " << seed;
        EXPECT_EQ((*newest)->name, "last");
        if (is_published) {
          EXPECT_EQ((*newest)->step, 2);
        }
        EXPECT_THAT(SnapshotReader::Open(files, (*newest)->path()).status(),
                    IsOk());
        aside += (*newest)->is_aside;
        EXPECT_EQ(PlaceOf(files, "job/last"), (*newest)->path());
        EXPECT_TRUE(!is_restored || (*newest)->path() == "job/last");
        EXPECT_THAT(RemoveTemporary(files, "job", ""), IsOk());
      }
      EXPECT_THAT(Names(files), ElementsAre("last")) << at << " " << seed;
    }
  }
  EXPECT_GT(aside, 10);
}

TEST(CatalogTest, NeedsAllFilesBeforeTheManifest) {
  MemoryFileSystem files;
  Manifest manifest = SmallManifest(2, 1);
  WriteShards(files, &manifest);
  ASSERT_THAT(files.RemoveAll(absl::StrCat(TemporaryPath("job", manifest.id),
                                           "/", ShardName(1, 2))),
              IsOk());
  EXPECT_THAT(
      PublishSnapshot(files, manifest, "best", kTestLife),
      StatusIs(absl::StatusCode::kDataLoss, "that all nodes of a job share"));
}

TEST(CatalogTest, PrunesTheOldestOfThoseNamedByStep) {
  MemoryFileSystem files;
  for (const int64_t step : {1, 2, 3, 4}) WriteStep(files, step);
  WriteStep(files, 1, "first");
  ASSERT_THAT(PruneSnapshots(files, "job", 0, 4, kTestLife), IsOk());
  EXPECT_EQ(Names(files).size(), 5u);
  ASSERT_THAT(PruneSnapshots(files, "job", 2, 4, kTestLife), IsOk());
  EXPECT_THAT(Names(files),
              ElementsAre("first", "step-00000003", "step-00000004"));
}

TEST(CatalogTest, RemovesWhatWasLeft) {
  MemoryFileSystem files;
  EXPECT_THAT(RemoveTemporary(files, "job", "2"), IsOk());
  WriteStep(files, 1);
  for (const char* name : {"job/.tmp-1", "job/.tmp-2", "job/.tmp-gone-x"}) {
    ASSERT_THAT(files.MakeDirectories(name), IsOk());
  }
  EXPECT_THAT(RemoveTemporary(files, "job", "2"), IsOk());
  EXPECT_THAT(Names(files), ElementsAre(".tmp-2", "step-00000001"));
}

// Who goes back to an earlier step writes beside what was later then: it keeps
// what it has just written, and leaves what it did not write.
TEST(CatalogTest, PrunesNothingLaterThanTheNewestOfThisLife) {
  MemoryFileSystem files;
  for (const int64_t step : {2, 4, 6, 8}) WriteStep(files, step);
  WriteStep(files, 5);
  ASSERT_THAT(PruneSnapshots(files, "job", 2, 5, kTestLife), IsOk());
  EXPECT_THAT(Names(files), ElementsAre("step-00000004", "step-00000005",
                                        "step-00000006", "step-00000008"));
}

constexpr LifeId kOther{2};

TEST(CatalogTest, ALifeThatHasTheDirectoryNoMoreChangesNothingThere) {
  MemoryFileSystem files;
  ASSERT_THAT(ClaimLife(files, "job", kTestLife, 1, false), IsOk());
  for (const int64_t step : {1, 2, 3}) WriteStep(files, step);
  Manifest manifest = SmallManifest(2, 1);
  manifest.step = manifest.optimizer_step = 3;
  WriteShards(files, &manifest);
  ASSERT_THAT(ClaimLife(files, "job", kOther, 2, false), IsOk());
  const int64_t changes = files.changes();
  for (const char* const name : {"step-00000003", "step-00000004", "best"}) {
    const absl::Status status =
        PublishSnapshot(files, manifest, name, kTestLife);
    EXPECT_TRUE(IsOtherLife(status)) << status;
  }
  const absl::Status pruned = PruneSnapshots(files, "job", 1, 3, kTestLife);
  EXPECT_TRUE(IsOtherLife(pruned)) << pruned;
  EXPECT_EQ(files.changes(), changes);
  // That its files are gone is not what it is told.
  ASSERT_THAT(RemoveTemporary(files, "job", ""), IsOk());
  EXPECT_TRUE(IsOtherLife(
      PublishSnapshot(files, manifest, "step-00000003", kTestLife)));
  EXPECT_THAT(Names(files), ElementsAre(".life", "step-00000001",
                                        "step-00000002", "step-00000003"));
}

// The claim comes while the manifest is being written, at any change of it.
TEST(CatalogTest, AClaimWhileItPublishesComesInTime) {
  class Claiming final : public FileSystem {
   public:
    explicit Claiming(MemoryFileSystem* files) : files_(files) {}
    absl::Status MakeDirectories(std::string_view path) override {
      return files_->MakeDirectories(path);
    }
    absl::StatusOr<std::unique_ptr<File>> Create(
        std::string_view path) override {
      return files_->Create(path);
    }
    absl::StatusOr<std::unique_ptr<File>> Open(std::string_view path) override {
      return files_->Open(path);
    }
    absl::StatusOr<std::vector<DirectoryEntry>> List(
        std::string_view path) override {
      return files_->List(path);
    }
    absl::Status Rename(std::string_view from, std::string_view to) override {
      return files_->Rename(from, to);
    }
    absl::Status RemoveAll(std::string_view path) override {
      return files_->RemoveAll(path);
    }
    // The last thing before the rename.
    absl::Status SyncDirectory(std::string_view path) override {
      EXPECT_THAT(ClaimLife(*files_, "job", kOther, 2, false), IsOk());
      return files_->SyncDirectory(path);
    }

   private:
    MemoryFileSystem* const files_;
  };
  MemoryFileSystem files;
  ASSERT_THAT(ClaimLife(files, "job", kTestLife, 1, false), IsOk());
  Manifest manifest = SmallManifest(2, 1);
  WriteShards(files, &manifest);
  Claiming claiming(&files);
  EXPECT_TRUE(IsOtherLife(
      PublishSnapshot(claiming, manifest, "step-00000003", kTestLife)));
  EXPECT_THAT(Names(files), ElementsAre(".life", ".tmp-0123456789abcdef"));
}

// Whatever the machine's last moment: what looks like a snapshot is one, and
// the one before is there as long as the new one is not.
TEST(CatalogTest, ACrashAnywhereLeavesWholeSnapshots) {  // I27
  int64_t changes = 0;
  {
    MemoryFileSystem files;
    WriteStep(files, 1);
    const int64_t before = files.changes();
    WriteStep(files, 2);
    ASSERT_THAT(PruneSnapshots(files, "job", 1, 2, kTestLife), IsOk());
    changes = files.changes() - before;
  }
  int torn = 0;
  for (int64_t at = 0; at <= changes; ++at) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      MemoryFileSystem files;
      WriteStep(files, 1);
      ASSERT_THAT(files.SyncDirectory(""), IsOk());
      files.FailAfter(at);
      Manifest manifest = SmallManifest(2, 1);
      manifest.step = manifest.optimizer_step = 2;
      manifest.id = "id-2";
      const std::string directory = TemporaryPath("job", manifest.id);
      bool is_written = files.MakeDirectories(directory).ok();
      for (int n = 0; n < 2 && is_written; ++n) {
        const std::string bytes = ShardBytes(SectionsOf(manifest, n));
        const std::string path = absl::StrCat(directory, "/", ShardName(n, 2));
        is_written = WriteWhole(files, path, bytes).ok();
        if (!is_written) break;
        const auto header = ReadHeader(**files.Open(path));
        manifest.files.push_back(
            {ShardName(n, 2), bytes.size(), header->checksum});
      }
      const bool is_published =
          is_written &&
          PublishSnapshot(files, manifest, StepName(2), kTestLife).ok();
      if (is_published)
        PruneSnapshots(files, "job", 1, 2, kTestLife).IgnoreError();
      base::SeededRandom random(seed);
      files.Crash(&random);
      const auto newest = FindNewest(files, "job");
      ASSERT_THAT(newest.status(), IsOk()) << at << " " << seed;
      ASSERT_TRUE(newest->has_value()) << at << " " << seed;
      if (is_published) {
        EXPECT_EQ((*newest)->step, 2);
      }
      torn += (*newest)->step == 1;
      EXPECT_THAT(SnapshotReader::Open(files, (*newest)->path()).status(),
                  IsOk())
          << at << " " << seed;
      EXPECT_THAT(RemoveTemporary(files, "job", ""), IsOk());
    }
  }
  EXPECT_GT(torn, 20);
}

}  // namespace
}  // namespace ballast::snapshot
