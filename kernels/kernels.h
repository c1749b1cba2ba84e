// The arithmetic of Ballast as one table of functions: the seam at which a
// build or a machine chooses its variants. kernels/reference is the scalar
// one and the specification; every other table gives the same bits.
//
// Threading: pure functions on the caller's memory, no allocation; thread-safe
// on disjoint outputs. Counts are >= 0. Arrays need only the alignment of
// their element. Preconditions are the caller's (layout's) own arithmetic;
// contents of arrays are never trusted and cannot misbehave.
#ifndef KERNELS_KERNELS_H_
#define KERNELS_KERNELS_H_

#include <cstdint>
#include <span>

#include "kernels/canonical_tree.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "kernels/hyper_parameters.h"
#include "kernels/step_undo.h"

namespace ballast::kernels {

struct CellNorm {
  double norm2 = 0;    // 0 if not finite
  bool finite = true;  // no NaN or infinity among the elements
};

struct Kernels {
  // out[i] = the canonical tree's sum of sources[r][i], r in rank order, each
  // element widened to fp32 first. One source: a widening copy; none: zeros.
  // `out` may be one of the sources if those are fp32.
  void (*tree_sum)(DType dtype, std::span<const void* const> sources,
                   int64_t count, float* out);

  // Finishes the tree over [0, world_size) from the sums of its subtrees
  // `ranges` (MaximalSubtrees of all nodes, ascending, IsTreeCover), then
  // divides once by world_size. `out` may be one of the parts.
  void (*finish_mean)(std::span<const RankRange> ranges,
                      std::span<const float* const> parts, int world_size,
                      int64_t count, float* out);

  // One cell: count <= kCellElements.
  CellNorm (*cell_norm)(const float* x, int64_t count);

  // One step of `count` elements in place, and their new weights cast to
  // `weight_dtype` (weight_out may be null: no cast). `m` may be null for
  // sgd without kFlagMomentum, `v` for all but adam and adamw.
  void (*optimizer_step)(OptimizerKind kind, const StepScalars& scalars,
                         int64_t count, const float* gradient, float* master,
                         float* m, float* v, DType weight_dtype,
                         void* weight_out);

  // The same bits, and the old values go to `undo` on the way: an element of
  // master, m or v changes only after undo.saved counts it. No two of the
  // arrays overlap, neither here nor above (master and weight_out neither).
  void (*optimizer_step_undo)(OptimizerKind kind, const StepScalars& scalars,
                              int64_t count, const float* gradient,
                              float* master, float* m, float* v,
                              DType weight_dtype, void* weight_out,
                              const StepUndo& undo);

  void (*cast)(const float* in, DType dtype, int64_t count, void* out);
  void (*widen)(const void* in, DType dtype, int64_t count, float* out);

  // What deltas start from (FORMAT.md 9): widened, what is not finite as +0.
  void (*reference)(const void* in, DType dtype, int64_t count, float* out);
  // out[i] = x[i] - reference of base[i]: what a delta encodes. `out` may be
  // `x`.
  void (*subtract)(const float* x, const void* base, DType dtype, int64_t count,
                   float* out);

  // A run of cells of one tensor from element `first` (a multiple of
  // kCellElements), exactly EncodedBytes(spec, count) bytes. `key` is a
  // StochasticKey, unused by nearest rounding. `spec` is valid.
  void (*encode)(const CodecSpec& spec, uint64_t key, int64_t first,
                 int64_t count, const float* in, uint8_t* out);
  void (*decode)(const CodecSpec& spec, int64_t count, const uint8_t* in,
                 float* out);
  // out[i] += decoded[i], in fp32.
  void (*decode_add)(const CodecSpec& spec, int64_t count, const uint8_t* in,
                     float* out);

  // How many elements of the run `encode` cuts off at the largest code
  // (FORMAT.md 3, clamp): 0 unless the range is clip16. For samples.
  int64_t (*count_clipped)(const CodecSpec& spec, uint64_t key, int64_t first,
                           int64_t count, const float* in);
};

}  // namespace ballast::kernels

#endif  // KERNELS_KERNELS_H_
