#include "kernels/reference/reference.h"

#include "kernels/reference/block_codec.h"
#include "kernels/reference/convert.h"
#include "kernels/reference/reduce.h"
#include "kernels/reference/update.h"

namespace ballast::kernels {

const Kernels& Reference() {
  static constexpr Kernels kReference = {
      .tree_sum = reference::TreeSum,
      .finish_mean = reference::FinishMean,
      .cell_norm = reference::NormOfCell,
      .optimizer_step = reference::OptimizerStep,
      .optimizer_step_undo = reference::OptimizerStepUndo,
      .cast = reference::Cast,
      .widen = reference::Widen,
      .reference = reference::FiniteOnly,
      .subtract = reference::Subtract,
      .encode = reference::Encode,
      .decode = reference::Decode,
      .decode_add = reference::DecodeAdd,
      .count_clipped = reference::CountClipped,
  };
  return kReference;
}

}  // namespace ballast::kernels
