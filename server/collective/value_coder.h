// Chunks of the masters themselves, encoded.
//
// Threading: as chunk_coder.h says.
#ifndef SERVER_COLLECTIVE_VALUE_CODER_H_
#define SERVER_COLLECTIVE_VALUE_CODER_H_

#include <memory>

#include "server/collective/chunk_coder.h"
#include "server/collective/context.h"

namespace ballast::collective {

// The context outlives the coder.
std::unique_ptr<ChunkCoder> MakeValueCoder(Context* context);

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_VALUE_CODER_H_
