#include "server/collective/dtype_codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "kernels/codec.h"

namespace ballast::collective {
namespace {

class DTypeCodec final : public Codec {
 public:
  DTypeCodec(kernels::DType dtype, const kernels::Kernels* kernels)
      : dtype_(dtype), kernels_(kernels) {
    traits_.name = kernels::Name(dtype);
    traits_.is_exact = dtype == kernels::DType::kFloat32;
  }

  const CodecTraits& traits() const override { return traits_; }

  int64_t EncodedBytes(int64_t count) const override {
    return (PayloadBytes(count) + kernels::kRunAlignment - 1) /
           kernels::kRunAlignment * kernels::kRunAlignment;
  }
  int64_t PayloadBytes(int64_t count) const override {
    return count * kernels::SizeOf(dtype_);
  }

  void Encode(const Run& run, const float* in, std::byte* out) const override {
    const int64_t size = PayloadBytes(run.count);
    kernels_->cast(in, dtype_, run.count, out);
    std::fill(out + size, out + EncodedBytes(run.count), std::byte{0});
  }

  void Decode(int64_t count, const std::byte* in, float* out) const override {
    kernels_->widen(in, dtype_, count, out);
  }

  void DecodeAdd(int64_t count, const std::byte* in,
                 float* out) const override {
    std::array<float, kernels::kCellElements> cell;
    for (int64_t i = 0; i < count; i += kernels::kCellElements) {
      const int64_t size = std::min(kernels::kCellElements, count - i);
      kernels_->widen(in + PayloadBytes(i), dtype_, size, cell.data());
      for (int64_t j = 0; j < size; ++j) out[i + j] += cell[j];
    }
  }

  int64_t CountClipped(const Run&, const float*) const override { return 0; }

  // Half a unit in the last place, subnormals included.
  double ErrorBound(double absmax) const override {
    switch (dtype_) {
      case kernels::DType::kFloat32:
        return 0;
      case kernels::DType::kBFloat16:
        return std::ldexp(absmax, -8) + 0x1p-134;
      case kernels::DType::kFloat16:
        return std::ldexp(absmax, -11) + 0x1p-25;
    }
    return 0;
  }

 private:
  const kernels::DType dtype_;
  const kernels::Kernels* const kernels_;
  CodecTraits traits_;
};

}  // namespace

std::unique_ptr<Codec> MakeDTypeCodec(kernels::DType dtype,
                                      const kernels::Kernels* kernels) {
  return std::make_unique<DTypeCodec>(dtype, kernels);
}

}  // namespace ballast::collective
