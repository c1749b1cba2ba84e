#include "kernels/reference/reduce.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/float_formats.h"
#include "kernels/reference/convert.h"

namespace ballast::kernels::reference {
namespace {

// Trees are walked once per tile, so that partial sums stay in the cache and
// an output may be one of the inputs. The order within an element is the
// tree's, whatever the tile.
constexpr int kTile = 256;

struct Tile {
  int64_t begin;
  int count;
};

const float* AddPair(const float* left, const float* right, int count,
                     float* out) {
  for (int i = 0; i < count; ++i) out[i] = left[i] + right[i];
  return out;
}

const void* ElementAt(const void* base, DType dtype, int64_t index) {
  return static_cast<const std::byte*>(base) + index * SizeOf(dtype);
}

// Where the sum lies: in `scratch`, or in the source itself if it is one
// fp32 leaf.
const float* SumOfSources(DType dtype, std::span<const void* const> sources,
                          Tile tile, float* scratch) {
  if (sources.size() == 1) {
    const void* leaf = ElementAt(sources[0], dtype, tile.begin);
    if (dtype == DType::kFloat32) return static_cast<const float*>(leaf);
    Widen(leaf, dtype, tile.count, scratch);
    return scratch;
  }
  const int left_count = LeftCount(static_cast<int>(sources.size()));
  float right_scratch[kTile];
  const float* left =
      SumOfSources(dtype, sources.first(left_count), tile, scratch);
  const float* right =
      SumOfSources(dtype, sources.subspan(left_count), tile, right_scratch);
  return AddPair(left, right, tile.count, scratch);
}

class MeanOfTile {
 public:
  MeanOfTile(std::span<const RankRange> ranges,
             std::span<const float* const> parts, Tile tile)
      : ranges_(ranges), parts_(parts), tile_(tile) {}

  const float* Sum(RankRange node, float* scratch) {
    if (next_ < ranges_.size() && ranges_[next_] == node) {
      return parts_[next_++] + tile_.begin;
    }
    if (node.count <= 1) {  // not a cover: loud, and never out of bounds
      std::fill_n(scratch, tile_.count,
                  std::numeric_limits<float>::quiet_NaN());
      return scratch;
    }
    const int left_count = LeftCount(node.count);
    float right_scratch[kTile];
    const float* left = Sum({node.first, left_count}, scratch);
    const float* right =
        Sum({node.first + left_count, node.count - left_count}, right_scratch);
    return AddPair(left, right, tile_.count, scratch);
  }

 private:
  std::span<const RankRange> ranges_;
  std::span<const float* const> parts_;
  Tile tile_;
  size_t next_ = 0;
};

template <typename Function>
void ForEachTile(int64_t count, Function function) {
  for (int64_t begin = 0; begin < count; begin += kTile) {
    function(
        Tile{begin, static_cast<int>(std::min<int64_t>(kTile, count - begin))});
  }
}

}  // namespace

void TreeSum(DType dtype, std::span<const void* const> sources, int64_t count,
             float* out) {
  if (sources.empty()) {
    std::fill_n(out, count, 0.0f);
    return;
  }
  ForEachTile(count, [&](Tile tile) {
    float scratch[kTile];
    const float* sum = SumOfSources(dtype, sources, tile, scratch);
    std::memmove(out + tile.begin, sum, tile.count * sizeof(float));
  });
}

void FinishMean(std::span<const RankRange> ranges,
                std::span<const float* const> parts, int world_size,
                int64_t count, float* out) {
  const auto divisor = static_cast<float>(world_size);
  ForEachTile(count, [&](Tile tile) {
    float scratch[kTile];
    const float* sum =
        MeanOfTile(ranges, parts, tile).Sum({0, world_size}, scratch);
    for (int i = 0; i < tile.count; ++i) out[tile.begin + i] = sum[i] / divisor;
  });
}

CellNorm NormOfCell(const float* x, int64_t count) {
  double lanes[8] = {};
  uint32_t largest = 0;  // magnitudes order as their bits do
  for (int64_t i = 0; i < count; ++i) {
    const double wide = x[i];
    lanes[i % 8] += wide * wide;
    largest = std::max(largest, Bits(x[i]) & 0x7fffffffu);
  }
  if (largest >= 0x7f800000u) return {.norm2 = 0, .finite = false};
  for (const int half : {4, 2, 1}) {
    for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return {.norm2 = lanes[0], .finite = true};
}

}  // namespace ballast::kernels::reference
