// Cuts the trainable elements of a job into buckets, shards and chunks, in
// time linear in what it makes: runs of cells are cut by arithmetic, never
// visited one by one. Results are bounded: ResourceExhausted before more is
// allocated than the bounds of types.h and Options allow.
//
// Threading: pure function.
#ifndef SERVER_LAYOUT_BUCKET_CUTTER_H_
#define SERVER_LAYOUT_BUCKET_CUTTER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/layout/types.h"

namespace ballast::layout {

// A tensor that is cut: trainable and not empty.
struct CutTensor {
  TensorId id;
  int64_t num_elements = 0;  // > 0
};

struct Cuts {
  std::vector<Bucket> buckets;
  std::vector<int64_t> state_elements;  // per owner
};

// `tensors` in layout order.
absl::StatusOr<Cuts> Cut(std::span<const CutTensor> tensors, int num_owners,
                         const Options& options);

// Cells of a run of `elements`; the last one may be short.
constexpr int64_t NumCells(int64_t elements) {
  return (elements + kCellElements - 1) / kCellElements;
}

constexpr int64_t PadElements(int64_t elements) {
  return (elements + kAlignElements - 1) / kAlignElements * kAlignElements;
}

}  // namespace ballast::layout

#endif  // SERVER_LAYOUT_BUCKET_CUTTER_H_
