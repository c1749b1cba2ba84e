// All file systems do the same, and the real one stays below its root.
#include "server/snapshot/files/file_system.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/random.h"
#include "server/base/status_matchers.h"
#include "server/snapshot/files/held_files.h"
#include "server/snapshot/files/memory_file_system.h"
#include "server/snapshot/files/posix_file_system.h"

namespace ballast::snapshot {
namespace {

using base::IsOk;
using base::StatusIs;
using testing::ElementsAre;
using testing::Field;

std::string NewDirectory() {
  std::string path = testing::TempDir() + "/files-XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

absl::Status Write(File& file, uint64_t offset, const std::string& text) {
  return file.WriteAt(offset, std::as_bytes(std::span(text)));
}

std::string Read(File& file) {
  std::string text(*file.Size(), '\0');
  EXPECT_THAT(file.ReadAt(0, std::as_writable_bytes(std::span(text))), IsOk());
  return text;
}

using Factory = std::function<std::unique_ptr<FileSystem>()>;

class FileSystemTest : public testing::TestWithParam<Factory> {
 protected:
  const std::unique_ptr<FileSystem> files_ = GetParam()();
};

TEST_P(FileSystemTest, KeepsWhatIsWritten) {
  ASSERT_THAT(files_->MakeDirectories("job/.tmp-1"), IsOk());
  ASSERT_THAT(files_->MakeDirectories("job/.tmp-1"), IsOk());
  auto file = files_->Create("job/.tmp-1/shard");
  ASSERT_THAT(file.status(), IsOk());
  EXPECT_THAT((*file)->Reserve(9), IsOk());
  EXPECT_THAT(Write(**file, 4, "later"), IsOk());
  EXPECT_THAT(Write(**file, 0, "now "), IsOk());
  EXPECT_THAT((*file)->Sync(), IsOk());
  EXPECT_THAT(files_->Create("job/.tmp-1/shard").status(),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(files_->Rename("job/.tmp-1", "job/step-1"), IsOk());
  EXPECT_THAT(files_->SyncDirectory("job"), IsOk());
  auto again = files_->Open("job/step-1/shard");
  ASSERT_THAT(again.status(), IsOk());
  EXPECT_EQ(Read(**again), "now later");
  EXPECT_THAT(*files_->List("job"),
              ElementsAre(Field(&DirectoryEntry::name, "step-1")));
}

TEST_P(FileSystemTest, TellsWhatIsWrong) {
  EXPECT_THAT(files_->Open("none").status(),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(files_->List("none").status(),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(files_->Rename("none", "other"),
              StatusIs(absl::StatusCode::kNotFound));
  ASSERT_THAT(files_->MakeDirectories("a"), IsOk());
  ASSERT_THAT(files_->MakeDirectories("b/c"), IsOk());
  EXPECT_THAT(files_->Rename("a", "b"),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(files_->Open("a").status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  auto file = files_->Create("a/file");
  ASSERT_THAT(file.status(), IsOk());
  ASSERT_THAT(Write(**file, 0, "1234"), IsOk());
  std::vector<std::byte> more(5);
  EXPECT_THAT((*file)->ReadAt(0, more), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_P(FileSystemTest, RemovesTrees) {
  EXPECT_THAT(files_->RemoveAll("none/at/all"), IsOk());
  ASSERT_THAT(files_->MakeDirectories("a/b/c"), IsOk());
  ASSERT_THAT(files_->Create("a/b/file").status(), IsOk());
  EXPECT_THAT(files_->RemoveAll("a"), IsOk());
  EXPECT_THAT(*files_->List(""), ElementsAre());
}

TEST_P(FileSystemTest, RefusesPathsThatLeadElsewhere) {  // I27
  for (const char* path :
       {"../x", "a/../../x", "/etc", "a//b", ".", "a/.", "a/"}) {
    EXPECT_THAT(files_->Create(path).status(),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << path;
    EXPECT_THAT(files_->MakeDirectories(path),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << path;
    EXPECT_THAT(files_->RemoveAll(path),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << path;
  }
}

INSTANTIATE_TEST_SUITE_P(Memory, FileSystemTest, testing::Values([] {
                           return std::make_unique<MemoryFileSystem>();
                         }));
INSTANTIATE_TEST_SUITE_P(Held, FileSystemTest, testing::Values([] {
                           return std::make_unique<HeldFiles>(1 << 20);
                         }));
INSTANTIATE_TEST_SUITE_P(Posix, FileSystemTest, testing::Values([] {
                           return std::make_unique<PosixFileSystem>(
                               NewDirectory());
                         }));

TEST(PosixFileSystemTest, FollowsNoLinkBelowItsRoot) {  // I27
  const std::string root = NewDirectory();
  const std::string outside = NewDirectory();
  PosixFileSystem files(root);
  PosixFileSystem other(outside);
  ASSERT_THAT(other.Create("secret").status(), IsOk());
  ASSERT_EQ(symlink(outside.c_str(), (root + "/link").c_str()), 0);
  ASSERT_EQ(symlink((outside + "/secret").c_str(), (root + "/file").c_str()),
            0);
  EXPECT_THAT(files.Open("link/secret").status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(files.Open("file").status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(files.Create("link/new").status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  // A link itself goes, never what it points to.
  EXPECT_THAT(files.RemoveAll("link"), IsOk());
  EXPECT_THAT(other.Open("secret").status(), IsOk());
  // The control: the root may be reached by a link.
  const std::string link = root + "/root";
  ASSERT_EQ(symlink(outside.c_str(), link.c_str()), 0);
  EXPECT_THAT(PosixFileSystem(link).Open("secret").status(), IsOk());
}

TEST(PosixFileSystemTest, DoesNotWaitForAFifo) {
  const std::string root = NewDirectory();
  ASSERT_EQ(mkfifo((root + "/fifo").c_str(), 0600), 0);
  EXPECT_THAT(PosixFileSystem(root).Open("fifo").status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(MemoryFileSystemTest, IsFull) {
  MemoryFileSystem files;
  files.set_capacity(10);
  auto file = files.Create("file");
  ASSERT_THAT(file.status(), IsOk());
  EXPECT_THAT(Write(**file, 0, "0123456789"), IsOk());
  EXPECT_THAT(Write(**file, 10, "x"),
              StatusIs(absl::StatusCode::kResourceExhausted, "No space"));
}

TEST(MemoryFileSystemTest, FailsAndIsReadOnlyWhenTold) {
  MemoryFileSystem files;
  files.FailAfter(1);
  EXPECT_THAT(files.MakeDirectories("a"), IsOk());
  EXPECT_THAT(files.MakeDirectories("b"),
              StatusIs(absl::StatusCode::kInternal));
  MemoryFileSystem other;
  other.set_read_only(true);
  EXPECT_THAT(other.MakeDirectories("a"),
              StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST(MemoryFileSystemTest, LosesWhatWasNotSyncedAndNothingElse) {
  int lost = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    MemoryFileSystem files;
    ASSERT_THAT(files.MakeDirectories("d"), IsOk());
    ASSERT_THAT(files.SyncDirectory(""), IsOk());
    auto kept = files.Create("d/kept");
    ASSERT_THAT(Write(**kept, 0, "all of it"), IsOk());
    ASSERT_THAT((*kept)->Sync(), IsOk());
    ASSERT_THAT(files.SyncDirectory("d"), IsOk());
    auto torn = files.Create("d/torn");
    ASSERT_THAT(Write(**torn, 0, "all of it"), IsOk());
    base::SeededRandom random(seed);
    files.Crash(&random);
    auto after = files.Open("d/kept");
    ASSERT_THAT(after.status(), IsOk());
    EXPECT_EQ(Read(**after), "all of it");
    auto other = files.Open("d/torn");
    lost += !other.ok() || Read(**other) != "all of it";
  }
  EXPECT_GT(lost, 10);
}

TEST(MemoryFileSystemTest, TearsWhatWasNotSyncedByPages) {
  constexpr size_t kPage = 4096;
  MemoryFileSystem files;
  const auto write = [&files](const char* path, char byte) {
    auto file = files.Create(path);
    EXPECT_THAT(Write(**file, 0, std::string(20 * kPage, byte)), IsOk());
    return *std::move(file);
  };
  const auto file = write("rewritten", 'a');
  const auto kept = write("kept", 'k');
  const auto fresh = write("fresh", 'f');
  ASSERT_THAT(file->Sync(), IsOk());
  ASSERT_THAT(kept->Sync(), IsOk());
  ASSERT_THAT(files.SyncDirectory(""), IsOk());
  ASSERT_THAT(Write(*file, 0, std::string(20 * kPage, 'b')), IsOk());
  base::SeededRandom random(1);
  files.Crash(&random, /*tears=*/true);
  const auto pages_of = [&files](const char* path) {
    const std::string& bytes = *files.Contents(path);
    std::map<char, int> pages;
    for (size_t at = 0; at < bytes.size(); at += kPage) {
      const std::string page = bytes.substr(at, kPage);
      EXPECT_EQ(page, std::string(kPage, page[0])) << "a page is one thing";
      ++pages[page[0]];
    }
    return pages;
  };
  const auto rewritten = pages_of("rewritten");
  EXPECT_GT(rewritten.at('a'), 2);
  EXPECT_GT(rewritten.at('b'), 2);
  EXPECT_EQ(rewritten.at('a') + rewritten.at('b'), 20);
  const auto zeros = pages_of("fresh");
  EXPECT_GT(zeros.at('f'), 2);
  EXPECT_EQ(zeros.at('f') + zeros.at('\0'), 20);
  EXPECT_EQ(pages_of("kept").at('k'), 20);
  EXPECT_EQ(files.torn(), 2);
}

}  // namespace
}  // namespace ballast::snapshot
