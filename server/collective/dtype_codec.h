// Elements as they are: a gradient sum as fp32, a weight as its own dtype.
#ifndef SERVER_COLLECTIVE_DTYPE_CODEC_H_
#define SERVER_COLLECTIVE_DTYPE_CODEC_H_

#include <memory>

#include "kernels/dtype.h"
#include "kernels/kernels.h"
#include "server/collective/codec.h"

namespace ballast::collective {

// `kernels` outlives the codec.
std::unique_ptr<Codec> MakeDTypeCodec(kernels::DType dtype,
                                      const kernels::Kernels* kernels);

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_DTYPE_CODEC_H_
