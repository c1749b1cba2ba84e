#include "server/layout/metering.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace ballast::layout {
namespace {

TEST(MeteringTest, EveryTensorHasACellInEveryStepAndEveryCellItsTurn) {  // I4
  for (const int64_t one_in : {1, 2, 3, 32, 1000}) {
    for (const int64_t num_cells : {1, 2, 31, 32, 33, 100, 1001}) {
      std::vector<int> turns(num_cells);
      for (int64_t turn = 1; turn <= one_in; ++turn) {
        int sampled = 0;
        for (int64_t cell = 0; cell < num_cells; ++cell) {
          if (!IsSampled(one_in, cell, num_cells, turn)) continue;
          ++sampled;
          ++turns[cell];
        }
        EXPECT_GE(sampled, 1);
        EXPECT_LE(sampled, num_cells / one_in + 1);
      }
      for (const int times : turns) EXPECT_GE(times, 1);
    }
  }
}

TEST(MeteringTest, ManyTensorsHaveTheirTurnToo) {
  EXPECT_EQ(WindowOf(0, Step(3)), (MeterWindow{0, 0, 3}));
  EXPECT_EQ(WindowOf(512, Step(3)), (MeterWindow{0, 512, 3}));
  for (const int num_tensors : {513, 1024, 1500}) {
    std::set<int> seen;
    for (int64_t step = 1; step <= 3; ++step) {
      const MeterWindow window = WindowOf(num_tensors, Step(step));
      EXPECT_GT(window.count, 0);
      EXPECT_LE(window.count, kMaxMeteredTensors);
      // The next time, other cells: no turn is left out.
      const int num_windows = num_tensors == 1500 ? 3 : 2;
      const Step again(step + num_windows);
      EXPECT_EQ(WindowOf(num_tensors, again).first, window.first);
      EXPECT_EQ(WindowOf(num_tensors, again).turn, window.turn + 1);
      for (int i = 0; i < window.count; ++i) seen.insert(window.first + i);
    }
    EXPECT_EQ(seen.size(), static_cast<size_t>(num_tensors));
    EXPECT_EQ(*seen.rbegin(), num_tensors - 1);
  }
}

}  // namespace
}  // namespace ballast::layout
