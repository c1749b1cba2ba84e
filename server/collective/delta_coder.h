// Chunks of how far the masters are from what is published
// (kernels/FORMAT.md 9), with checksums of before and after. Needs
// parts.published.
//
// Threading: as chunk_coder.h says.
#ifndef SERVER_COLLECTIVE_DELTA_CODER_H_
#define SERVER_COLLECTIVE_DELTA_CODER_H_

#include <memory>

#include "server/collective/chunk_coder.h"
#include "server/collective/context.h"

namespace ballast::collective {

// The context outlives the coder.
std::unique_ptr<ChunkCoder> MakeDeltaCoder(Context* context);

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_DELTA_CODER_H_
