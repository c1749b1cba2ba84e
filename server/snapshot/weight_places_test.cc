#include "server/snapshot/weight_places.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::snapshot {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

class WeightPlacesTest : public testing::Test {
 protected:
  using Found = std::vector<std::pair<uint64_t, int>>;

  // Where each run begins, and the value of its first byte.
  static Found Of(const WeightPlaces& places, uint64_t begin, uint64_t end) {
    Found found;
    places.ForEach(begin, end, [&](uint64_t at, std::span<std::byte> bytes) {
      for (size_t i = 0; i < bytes.size(); ++i) {
        found.emplace_back(at + i, static_cast<int>(bytes[i]));
      }
    });
    EXPECT_EQ(places.Overlaps(begin, end), !found.empty());
    return found;
  }

  WeightPlacesTest() {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = std::byte(i);
  }
  std::span<std::byte> At(size_t begin, size_t size) {
    return std::span(memory_).subspan(begin, size);
  }

  std::array<std::byte, 64> memory_;
};

TEST_F(WeightPlacesTest, OfAWholeSegmentIsAllOfIt) {
  const WeightPlaces places{std::span(memory_)};
  EXPECT_THAT(Of(places, 10, 12), ElementsAre(Pair(10, 10), Pair(11, 11)));
  EXPECT_EQ(places.Find(0, 64).data(), memory_.data());
  EXPECT_EQ(places.Find(60, 4).data(), memory_.data() + 60);
  EXPECT_THAT(places.Find(60, 5), IsEmpty());
  EXPECT_THAT(Of(places, 64, 70), IsEmpty());
}

TEST_F(WeightPlacesTest, OfPartsIsWhatIsHere) {
  const WeightPlaces places(std::vector<WeightPlaces::Part>{
      {100, At(40, 3)}, {110, At(0, 0)}, {7, At(10, 2)}, {9, At(20, 2)}});
  EXPECT_THAT(Of(places, 0, 200),
              ElementsAre(Pair(7, 10), Pair(8, 11), Pair(9, 20), Pair(10, 21),
                          Pair(100, 40), Pair(101, 41), Pair(102, 42)));
  EXPECT_THAT(Of(places, 8, 10), ElementsAre(Pair(8, 11), Pair(9, 20)));
  EXPECT_THAT(Of(places, 101, 102), ElementsAre(Pair(101, 41)));
  for (const auto& [begin, end] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 7}, {11, 100}, {103, 200}, {8, 8}}) {
    EXPECT_THAT(Of(places, begin, end), IsEmpty()) << begin << " " << end;
  }
  EXPECT_EQ(places.Find(101, 2).data(), memory_.data() + 41);
  EXPECT_THAT(places.Find(101, 3), IsEmpty());
  EXPECT_THAT(places.Find(8, 2), IsEmpty()) << "in two places";
  EXPECT_THAT(places.Find(99, 1), IsEmpty());
}

TEST_F(WeightPlacesTest, OfNothingIsNothing) {
  EXPECT_THAT(Of(WeightPlaces(), 0, 10), IsEmpty());
  EXPECT_THAT(WeightPlaces().Find(0, 1), IsEmpty());
}

}  // namespace
}  // namespace ballast::snapshot
