#include "server/snapshot/files/life.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/random.h"
#include "server/base/status_matchers.h"
#include "server/snapshot/files/memory_file_system.h"
#include "server/snapshot/files/safetensors.h"

namespace ballast::snapshot {
namespace {

using base::IsOk;
using base::StatusIs;
using testing::ElementsAre;

constexpr LifeId kFirst{0x1111};
constexpr LifeId kSecond{0x2222};
constexpr char kPath[] = "job/.life";

absl::Status Claim(FileSystem& files, LifeId life, int64_t since,
                   bool has_claimed = false) {
  return ClaimLife(files, "job", life, since, has_claimed);
}

TEST(LifeTest, TextAndBack) {
  const LifeRecord record{kSecond, 12, {kFirst, LifeId{UINT64_MAX}}};
  const std::string text = ToText(record);
  EXPECT_THAT(text, testing::StartsWith("ballast life 1\n"
                                        "id 0000000000002222\n"
                                        "since 12\n"
                                        "before 0000000000001111 "
                                        "ffffffffffffffff\n"
                                        "checksum "));
  const auto read = ParseLife(text);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->id, kSecond);
  EXPECT_EQ(read->since, 12);
  EXPECT_THAT(read->before, ElementsAre(kFirst, LifeId{UINT64_MAX}));
}

std::string WithChecksum(const std::string& text) {
  return absl::StrCat(text, "checksum ", ToHex16(Checksum(text)), "\n");
}

TEST(LifeTest, RefusesWhatItDidNotWrite) {  // I27
  const std::string text = ToText({kFirst, 3, {kSecond}});
  for (size_t at = 0; at < text.size(); ++at) {
    EXPECT_THAT(ParseLife(text.substr(0, at)).status(),
                StatusIs(absl::StatusCode::kDataLoss));
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = text;
      other[at] = static_cast<char>(other[at] ^ (1 << bit));
      EXPECT_THAT(ParseLife(other).status(),
                  StatusIs(absl::StatusCode::kDataLoss))
          << at;
    }
  }
  // Whose checksum is good.
  const std::string id = "id 0000000000001111\n";
  std::string many = "before";
  for (size_t i = 0; i <= kMaxLivesBefore; ++i) many += " 0000000000001111";
  for (const std::string& bad :
       {std::string(), std::string("\n"), "ballast life 2\n" + id,
        "ballast life 1\n" + id, "ballast life 1\n" + id + "since 1\n",
        "ballast life 1\n" + id + "since -1\nbefore\n",
        "ballast life 1\n" + id + "since 1e3\nbefore\n",
        "ballast life 1\n" + id + "since 1\nbefore 11\n",
        "ballast life 1\n" + id + "since 1\n" + many + "\n",
        "ballast life 1\n" + id + "since 1\nbefore\nand more\n",
        std::string("ballast life 1\nid 11\nsince 1\nbefore\n")}) {
    EXPECT_THAT(ParseLife(WithChecksum(bad)).status(),
                StatusIs(absl::StatusCode::kDataLoss))
        << bad;
  }
}

TEST(LifeTest, TheLaterLifeHasTheDirectory) {
  MemoryFileSystem files;
  EXPECT_FALSE((*ReadLife(files, "job")).has_value());
  EXPECT_THAT(CheckLife(files, "job", kFirst), IsOk());  // nobody's
  ASSERT_THAT(Claim(files, kFirst, 2), IsOk());
  ASSERT_THAT(Claim(files, kFirst, 4, /*has_claimed=*/true), IsOk());
  EXPECT_EQ((*ReadLife(files, "job"))->since, 2);
  EXPECT_THAT(CheckLife(files, "job", kFirst), IsOk());
  ASSERT_THAT(Claim(files, kSecond, 3), IsOk());
  EXPECT_THAT(CheckLife(files, "job", kSecond), IsOk());
  // The earlier one is told, whether it remembers or not.
  for (const bool has_claimed : {true, false}) {
    const absl::Status status = Claim(files, kFirst, 6, has_claimed);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 "another life of the job writes here (since "
                                 "step 3): stop one of the two"));
    EXPECT_TRUE(IsOtherLife(status));
  }
  EXPECT_TRUE(IsOtherLife(CheckLife(files, "job", kFirst)));
  EXPECT_EQ((*ReadLife(files, "job"))->id, kSecond);
  // The operator's word.
  ASSERT_THAT(files.RemoveAll(kPath), IsOk());
  EXPECT_THAT(CheckLife(files, "job", kFirst), IsOk());
  ASSERT_THAT(Claim(files, kFirst, 6, /*has_claimed=*/true), IsOk());
  EXPECT_TRUE(IsOtherLife(CheckLife(files, "job", kSecond)));
}

// Both had read before one of them wrote: the one that is not in the record
// remembers that it had claimed it.
TEST(LifeTest, OneOfTwoThatClaimAtOnceHasIt) {
  MemoryFileSystem files;
  ASSERT_THAT(Claim(files, kFirst, 1), IsOk());
  ASSERT_THAT(files.RemoveAll(kPath), IsOk());
  ASSERT_THAT(Claim(files, kSecond, 1), IsOk());
  EXPECT_TRUE(IsOtherLife(CheckLife(files, "job", kFirst)));
  EXPECT_TRUE(IsOtherLife(Claim(files, kFirst, 2, /*has_claimed=*/true)));
}

TEST(LifeTest, RemembersSoManyLives) {
  MemoryFileSystem files;
  for (uint64_t id = 1; id <= 40; ++id) {
    ASSERT_THAT(Claim(files, LifeId{id}, 1), IsOk());
  }
  EXPECT_EQ((*ReadLife(files, "job"))->before.size(), kMaxLivesBefore);
  EXPECT_TRUE(IsOtherLife(Claim(files, LifeId{40 - kMaxLivesBefore}, 1)));
  EXPECT_LT(files.Contents(kPath)->size(), 1024u);
}

// Nobody writes where it is not known whose the directory is.
TEST(LifeTest, ADamagedRecordIsNobodysLeave) {  // I27
  for (const std::string& bytes :
       {std::string(), std::string("x"), std::string(100'000'000, 'x'),
        ToText({kFirst, 1, {}}) + "x"}) {
    MemoryFileSystem files;
    ASSERT_THAT(Claim(files, kFirst, 1), IsOk());
    *files.Contents(kPath) = bytes;
    for (const LifeId life : {kFirst, kSecond}) {
      for (const absl::Status& status :
           {Claim(files, life, 1), CheckLife(files, "job", life)}) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                                     "job/.life is damaged"));
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                                     "if no other does, remove job/.life"));
        EXPECT_FALSE(IsOtherLife(status));
      }
    }
    EXPECT_EQ(*files.Contents(kPath), bytes);
  }
  MemoryFileSystem files;
  ASSERT_THAT(files.MakeDirectories(kPath), IsOk());
  EXPECT_THAT(Claim(files, kFirst, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, "remove job/.life"));
}

TEST(LifeTest, SaysWhyItCannotClaim) {
  MemoryFileSystem files;
  files.set_read_only(true);
  EXPECT_THAT(Claim(files, kFirst, 1),
              StatusIs(absl::StatusCode::kPermissionDenied, "Read-only"));
  files.set_read_only(false);
  files.set_capacity(20);
  EXPECT_THAT(Claim(files, kFirst, 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "if no other life of the job runs, job/.tmp-*"));
  EXPECT_TRUE(files.List("job")->empty());  // I28
}

// The machine dies at any change, or the change fails: the record is the one
// before or the new one, and its life claims it again.
TEST(LifeTest, ACrashAnywhereLeavesAWholeRecord) {  // I27
  int64_t changes = 0;
  {
    MemoryFileSystem files;
    ASSERT_THAT(Claim(files, kFirst, 1), IsOk());
    const int64_t before = files.changes();
    ASSERT_THAT(Claim(files, kSecond, 2), IsOk());
    changes = files.changes() - before;
  }
  EXPECT_GE(changes, 6);
  int old = 0;
  for (int64_t at = 0; at <= changes; ++at) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
      for (const bool has_first : {false, true}) {
        MemoryFileSystem files;
        if (has_first) {
          ASSERT_THAT(Claim(files, kFirst, 1), IsOk());
        }
        files.FailAfter(at);
        const bool is_claimed = Claim(files, kSecond, 2).ok();
        base::SeededRandom random(seed);
        if (seed % 2 == 0) {
          files.Crash(&random);
        } else {
          files.FailAfter(INT64_MAX);
        }
        const auto read = ReadLife(files, "job");
        ASSERT_THAT(read, IsOk()) << at << " " << seed;
        if (is_claimed || (at == changes && has_first)) {
          ASSERT_TRUE(read->has_value());
          EXPECT_EQ((*read)->id, kSecond) << at << " " << seed;
        } else if (has_first) {
          ASSERT_TRUE(read->has_value());
          old += (*read)->id == kFirst;
        }
        ASSERT_THAT(Claim(files, kSecond, 3), IsOk()) << at << " " << seed;
        EXPECT_EQ((*ReadLife(files, "job"))->id, kSecond);
        if (has_first) {
          EXPECT_TRUE(IsOtherLife(CheckLife(files, "job", kFirst)));
        }
      }
    }
  }
  EXPECT_GT(old, 20);
}

}  // namespace
}  // namespace ballast::snapshot
