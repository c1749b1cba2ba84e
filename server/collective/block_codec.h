// int8, int4 and int2 with one fp32 scale per block (kernels/FORMAT.md).
#ifndef SERVER_COLLECTIVE_BLOCK_CODEC_H_
#define SERVER_COLLECTIVE_BLOCK_CODEC_H_

#include <memory>
#include <string_view>

#include "kernels/codec.h"
#include "kernels/kernels.h"
#include "server/collective/codec.h"

namespace ballast::collective {

// `spec` is valid; `name` (of layout's table) and `kernels` outlive the codec.
std::unique_ptr<Codec> MakeBlockCodec(std::string_view name,
                                      const kernels::CodecSpec& spec,
                                      const kernels::Kernels* kernels);

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_BLOCK_CODEC_H_
