#include "server/collective/block_codec.h"

namespace ballast::collective {
namespace {

// FORMAT.md, section 3: below it a block is encoded as zeros.
constexpr double kTiny = 0x1p-120;
// fp32 rounding of the quotient, the product and a subnormal scale.
constexpr double kSlack = 0x1p-13;

class BlockCodec final : public Codec {
 public:
  BlockCodec(std::string_view name, const kernels::CodecSpec& spec,
             const kernels::Kernels* kernels)
      : spec_(spec), kernels_(kernels) {
    traits_.name = name;
    traits_.is_stochastic = spec.rounding == kernels::Rounding::kStochastic;
  }

  const CodecTraits& traits() const override { return traits_; }

  int64_t EncodedBytes(int64_t count) const override {
    return kernels::EncodedBytes(spec_, count);
  }
  int64_t PayloadBytes(int64_t count) const override {
    const int64_t per_byte = 8 / spec_.bits;
    return kernels::NumBlocks(spec_, count) * sizeof(float) +
           (count + per_byte - 1) / per_byte;
  }

  void Encode(const Run& run, const float* in, std::byte* out) const override {
    kernels_->encode(spec_, run.key, run.first, run.count, in,
                     reinterpret_cast<uint8_t*>(out));
  }
  void Decode(int64_t count, const std::byte* in, float* out) const override {
    kernels_->decode(spec_, count, reinterpret_cast<const uint8_t*>(in), out);
  }
  void DecodeAdd(int64_t count, const std::byte* in,
                 float* out) const override {
    kernels_->decode_add(spec_, count, reinterpret_cast<const uint8_t*>(in),
                         out);
  }

  int64_t CountClipped(const Run& run, const float* in) const override {
    if (spec_.range != kernels::Range::kClip16) return 0;
    return kernels_->count_clipped(spec_, run.key, run.first, run.count, in);
  }

  // Rotating back is the mean of 32 rotated errors with signs: no more than
  // the largest of them, plus its own fp32 rounding.
  double ErrorBound(double absmax) const override {
    const int half = 1 << (spec_.bits - 1);
    const bool is_sym = spec_.range == kernels::Range::kSym;
    const double rotated =
        spec_.hadamard != 0 ? absmax * spec_.hadamard : absmax;
    const double step = rotated / (is_sym ? half - 1 : half);
    const bool is_half =
        is_sym && spec_.rounding == kernels::Rounding::kNearest;
    const double fp32 = spec_.hadamard != 0 ? rotated * 0x1p-20 : 0;
    return ((is_half ? 0.5 : 1.0) + kSlack) * step + fp32 + kTiny;
  }

 private:
  const kernels::CodecSpec spec_;
  const kernels::Kernels* const kernels_;
  CodecTraits traits_;
};

}  // namespace

std::unique_ptr<Codec> MakeBlockCodec(std::string_view name,
                                      const kernels::CodecSpec& spec,
                                      const kernels::Kernels* kernels) {
  return std::make_unique<BlockCodec>(name, spec, kernels);
}

}  // namespace ballast::collective
