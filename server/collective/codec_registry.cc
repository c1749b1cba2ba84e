#include "server/collective/codec_registry.h"

#include "server/collective/block_codec.h"
#include "server/collective/dtype_codec.h"

namespace ballast::collective {
namespace {

std::unique_ptr<Codec> AsItIs(const layout::CodecChoice&,
                              kernels::DType unquantized,
                              const kernels::Kernels* kernels) {
  return MakeDTypeCodec(unquantized, kernels);
}

std::unique_ptr<Codec> InBlocks(const layout::CodecChoice& choice,
                                kernels::DType,
                                const kernels::Kernels* kernels) {
  return MakeBlockCodec(layout::Name(choice.codec), choice.block, kernels);
}

constexpr CodecEntry kEntries[] = {
    {layout::CodecId::kNone, AsItIs},
    {layout::CodecId::kInt8, InBlocks},
    {layout::CodecId::kInt4, InBlocks},
    {layout::CodecId::kInt2, InBlocks},
};

}  // namespace

std::span<const CodecEntry> CodecEntries() { return kEntries; }

std::unique_ptr<Codec> MakeCodec(const layout::CodecChoice& choice,
                                 kernels::DType unquantized,
                                 const kernels::Kernels* kernels) {
  for (const CodecEntry& entry : kEntries) {
    if (entry.id == choice.codec) {
      return entry.make(choice, unquantized, kernels);
    }
  }
  return nullptr;
}

}  // namespace ballast::collective
