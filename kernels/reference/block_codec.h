// Reference block codec: encode, decode, decode-and-add of a run of cells.
#ifndef KERNELS_REFERENCE_BLOCK_CODEC_H_
#define KERNELS_REFERENCE_BLOCK_CODEC_H_

#include <cstdint>

#include "kernels/codec.h"

namespace ballast::kernels::reference {

void Encode(const CodecSpec& spec, uint64_t key, int64_t first, int64_t count,
            const float* in, uint8_t* out);
void Decode(const CodecSpec& spec, int64_t count, const uint8_t* in,
            float* out);
void DecodeAdd(const CodecSpec& spec, int64_t count, const uint8_t* in,
               float* out);
int64_t CountClipped(const CodecSpec& spec, uint64_t key, int64_t first,
                     int64_t count, const float* in);

}  // namespace ballast::kernels::reference

#endif  // KERNELS_REFERENCE_BLOCK_CODEC_H_
