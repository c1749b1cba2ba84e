// Tied tensors are one tensor (I16): registered twice they would be trained
// apart. Storage is told by where the initial values lie.
//
// Threading: pure functions.
#ifndef CLIENT_WORKER_TIES_H_
#define CLIENT_WORKER_TIES_H_

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"

namespace ballast::worker {

// InvalidArgument names two tensors whose values share memory: the same of it
// (a tie), or one a part of the other's. Empty values share nothing.
// `name` gives a tensor's, by its index in `values`.
absl::Status CheckTies(std::span<const std::span<const std::byte>> values,
                       const std::function<std::string(size_t)>& name);

}  // namespace ballast::worker

#endif  // CLIENT_WORKER_TIES_H_
