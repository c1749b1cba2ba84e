#include "kernels/host/reduce.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <span>

#include "kernels/canonical_tree.h"
#include "kernels/host/prefetch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/reduce.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/host/dispatch.h"
#include "kernels/host/float_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ballast::kernels::host {
namespace HWY_NAMESPACE {
namespace {
#if HWY_TARGET == HWY_SCALAR
void Fill(Kernels*) {}
#else

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
constexpr int64_t kLanes = hn::MaxLanes(D());

// Trees of at most this many leaves are added in registers; larger ones are
// made of them, by tiles that stay in the first-level cache.
constexpr int kInRegisters = 8;
constexpr int64_t kTile = 1024;

using Sources = std::span<const void* const>;

void AddPair(const float* left, const float* right, int64_t count, float* out) {
  const D d;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, left + i), hn::LoadU(d, right + i)), d,
               out + i);
  }
  for (; i < count; ++i) out[i] = left[i] + right[i];
}

// The tree over `kCount` leaves, unrolled.
template <class Leaf, int kCount>
HWY_INLINE V TreeVec(const void* const* sources, int64_t i) {
  if constexpr (kCount == 1) {
    return Leaf::Vec(D(), sources[0], i);
  } else {
    constexpr int kLeft = std::bit_floor(unsigned{kCount - 1});
    return hn::Add(TreeVec<Leaf, kLeft>(sources, i),
                   TreeVec<Leaf, kCount - kLeft>(sources + kLeft, i));
  }
}

template <class Leaf, int kCount>
float TreeOne(const void* const* sources, int64_t i) {
  if constexpr (kCount == 1) {
    return Leaf::One(sources[0], i);
  } else {
    constexpr int kLeft = std::bit_floor(unsigned{kCount - 1});
    return TreeOne<Leaf, kLeft>(sources, i) +
           TreeOne<Leaf, kCount - kLeft>(sources + kLeft, i);
  }
}

template <class Leaf, int kCount>
void SmallTree(Sources list, int64_t begin, int64_t count, float* out) {
  if constexpr (kCount > 1) {
    if (static_cast<int>(list.size()) < kCount) {
      return SmallTree<Leaf, kCount - 1>(list, begin, count, out);
    }
  }
  const void* sources[kCount];
  std::copy_n(list.begin(), kCount, sources);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(TreeVec<Leaf, kCount>(sources, begin + i), D(), out + i);
  }
  for (; i < count; ++i) out[i] = TreeOne<Leaf, kCount>(sources, begin + i);
}

// `out` is written last, so that it may lie on a source.
template <class Leaf>
void TileTree(Sources sources, int64_t begin, int64_t count, float* out) {
  if (sources.size() <= kInRegisters) {
    return SmallTree<Leaf, kInRegisters>(sources, begin, count, out);
  }
  const int left_count = LeftCount(static_cast<int>(sources.size()));
  float left[kTile];
  float right[kTile];
  TileTree<Leaf>(sources.first(left_count), begin, count, left);
  TileTree<Leaf>(sources.subspan(left_count), begin, count, right);
  AddPair(left, right, count, out);
}

template <class Leaf>
void TreeSumOf(Sources sources, int64_t count, float* out) {
  if (sources.size() <= kInRegisters) {
    return SmallTree<Leaf, kInRegisters>(sources, 0, count, out);
  }
  for (int64_t begin = 0; begin < count; begin += kTile) {
    TileTree<Leaf>(sources, begin, std::min(kTile, count - begin), out + begin);
  }
}

void TreeSum(DType dtype, Sources sources, int64_t count, float* out) {
  if (sources.empty()) {
    std::fill_n(out, count, 0.0f);
    return;
  }
  switch (dtype) {
    case DType::kFloat32:
      return TreeSumOf<Float32>(sources, count, out);
    case DType::kBFloat16:
      return TreeSumOf<BFloat16>(sources, count, out);
    case DType::kFloat16:
      return TreeSumOf<Float16>(sources, count, out);
  }
}

// The rest of the tree over all ranks, for one tile.
class MeanOfTile {
 public:
  MeanOfTile(std::span<const RankRange> ranges,
             std::span<const float* const> parts, int64_t begin, int64_t count)
      : ranges_(ranges), parts_(parts), begin_(begin), count_(count) {}

  // Where the sum of `node` lies: in `scratch` or in a part itself.
  const float* Sum(RankRange node, float* scratch) {
    if (next_ < ranges_.size() && ranges_[next_] == node) {
      return parts_[next_++] + begin_;
    }
    if (node.count <= 1) {  // not a cover: loud, and never out of bounds
      std::fill_n(scratch, count_, std::numeric_limits<float>::quiet_NaN());
      return scratch;
    }
    const int left_count = LeftCount(node.count);
    float right_scratch[kTile];
    const float* left = Sum({node.first, left_count}, scratch);
    const float* right =
        Sum({node.first + left_count, node.count - left_count}, right_scratch);
    AddPair(left, right, count_, scratch);
    return scratch;
  }

 private:
  std::span<const RankRange> ranges_;
  std::span<const float* const> parts_;
  int64_t begin_;
  int64_t count_;
  size_t next_ = 0;
};

void Divide(const float* in, float divisor, int64_t count, float* out) {
  const D d;
  const auto divisors = hn::Set(d, divisor);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::Div(hn::LoadU(d, in + i), divisors), d, out + i);
  }
  for (; i < count; ++i) out[i] = in[i] / divisor;
}

void FinishMean(std::span<const RankRange> ranges,
                std::span<const float* const> parts, int world_size,
                int64_t count, float* out) {
  const auto divisor = static_cast<float>(world_size);
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t size = std::min(kTile, count - begin);
    float scratch[kTile];
    MeanOfTile tile(ranges, parts, begin, size);
    Divide(tile.Sum({0, world_size}, scratch), divisor, size, out + begin);
  }
}

void Fill(Kernels* table) {
  table->tree_sum = TreeSum;
  table->finish_mean = FinishMean;
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ballast::kernels::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ballast::kernels::host {

HWY_EXPORT(Fill);

void AddReduce(int64_t target, Kernels* table) {
  HWY_DISPATCH_TABLE(Fill)[TableIndex(target)](table);
}

}  // namespace ballast::kernels::host
#endif  // HWY_ONCE
