// All codecs, by the name that a policy gives them.
//
// Threading: pure functions.
#ifndef SERVER_COLLECTIVE_CODEC_REGISTRY_H_
#define SERVER_COLLECTIVE_CODEC_REGISTRY_H_

#include <memory>
#include <span>

#include "kernels/dtype.h"
#include "kernels/kernels.h"
#include "server/collective/codec.h"
#include "server/layout/policy.h"

namespace ballast::collective {

struct CodecEntry {
  layout::CodecId id;
  // `unquantized` is what elements are without a codec.
  std::unique_ptr<Codec> (*make)(const layout::CodecChoice& choice,
                                 kernels::DType unquantized,
                                 const kernels::Kernels* kernels);
};

std::span<const CodecEntry> CodecEntries();

// `kernels` outlives the codec. Null if there is no such codec.
std::unique_ptr<Codec> MakeCodec(const layout::CodecChoice& choice,
                                 kernels::DType unquantized,
                                 const kernels::Kernels* kernels);

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CODEC_REGISTRY_H_
