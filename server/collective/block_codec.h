// int8 and int4 with one fp32 scale per block (kernels/FORMAT.md).
#ifndef SERVER_COLLECTIVE_BLOCK_CODEC_H_
#define SERVER_COLLECTIVE_BLOCK_CODEC_H_

#include <memory>

#include "kernels/codec.h"
#include "kernels/kernels.h"
#include "server/collective/codec.h"

namespace ballast::collective {

// `spec` is valid; `kernels` outlives the codec.
std::unique_ptr<Codec> MakeBlockCodec(const kernels::CodecSpec& spec,
                                      const kernels::Kernels* kernels);

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_BLOCK_CODEC_H_
