// Says in words how two tensor lists differ, for the rank that disagrees with
// the job ("tensor 3 \"wte\": dtype float32 here, bfloat16 there").
//
// Threading: pure function.
#ifndef SERVER_LAYOUT_DIFFERENCE_H_
#define SERVER_LAYOUT_DIFFERENCE_H_

#include <span>
#include <string>

#include "server/layout/types.h"

namespace ballast::layout {

// The first difference; empty if there is none.
std::string Difference(std::span<const TensorSpec> here,
                       std::span<const TensorSpec> there);

}  // namespace ballast::layout

#endif  // SERVER_LAYOUT_DIFFERENCE_H_
