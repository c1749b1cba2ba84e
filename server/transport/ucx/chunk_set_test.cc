#include "server/transport/ucx/chunk_set.h"

#include <vector>

#include "gtest/gtest.h"

namespace ballast::transport {
namespace {

// I4: every size is cut without a gap, an overlap or an empty chunk, but for
// the one of an empty part.
TEST(ChunkTest, ChunksCoverThePart) {
  for (const uint32_t chunk_bytes : {1u, 7u, 400u, 1024u}) {
    for (const uint64_t size :
         {uint64_t{0}, uint64_t{1}, uint64_t{chunk_bytes - 1},
          uint64_t{chunk_bytes}, uint64_t{chunk_bytes + 1}, uint64_t{1000},
          uint64_t{5000}}) {
      uint64_t end = 0;
      const uint64_t num_chunks = NumChunks(size, chunk_bytes);
      for (uint32_t chunk = 0; chunk < num_chunks; ++chunk) {
        const ChunkRange range = RangeOfChunk(size, chunk_bytes, chunk);
        EXPECT_EQ(range.offset, end);
        EXPECT_TRUE(range.size > 0 || size == 0);
        EXPECT_LE(range.size, chunk_bytes);
        end += range.size;
      }
      EXPECT_EQ(end, size);
    }
  }
}

TEST(ChunkTest, TheExampleOfTheHeader) {
  ASSERT_EQ(NumChunks(1000, 400), 3u);
  EXPECT_EQ(RangeOfChunk(1000, 400, 2).offset, 800u);
  EXPECT_EQ(RangeOfChunk(1000, 400, 2).size, 200u);
}

TEST(ChunkTest, OffsetsHave64Bits) {
  constexpr uint64_t kSize = uint64_t{1} << 40;
  const uint32_t last = static_cast<uint32_t>(NumChunks(kSize, 1 << 18) - 1);
  EXPECT_EQ(RangeOfChunk(kSize, 1 << 18, last).offset, kSize - (1 << 18));
}

TEST(ChunkSetTest, InsertsOnce) {
  ChunkSet set(130);
  EXPECT_TRUE(set.empty());
  EXPECT_TRUE(set.Insert(129));
  EXPECT_FALSE(set.Insert(129));
  EXPECT_TRUE(set.Contains(129));
  EXPECT_FALSE(set.Contains(128));
  EXPECT_EQ(set.count(), 1u);
  set.Clear();
  EXPECT_TRUE(set.empty());
  EXPECT_FALSE(set.Contains(129));
}

TEST(ChunkSetTest, IsFullWithAllChunks) {
  for (const uint32_t size : {1u, 63u, 64u, 65u}) {
    ChunkSet set(size);
    for (uint32_t chunk = 0; chunk < size; ++chunk) {
      EXPECT_FALSE(set.is_full());
      EXPECT_TRUE(set.Insert(chunk));
    }
    EXPECT_TRUE(set.is_full());
  }
}

TEST(ChunkSetTest, TakesTheLowestFirst) {
  ChunkSet set(200);
  for (const uint32_t chunk : {150u, 3u, 64u}) set.Insert(chunk);
  std::vector<uint32_t> taken;
  while (!set.empty()) taken.push_back(set.TakeFirst());
  EXPECT_EQ(taken, (std::vector<uint32_t>{3, 64, 150}));
}

}  // namespace
}  // namespace ballast::transport
