#include "kernels/reference_c.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "kernels/exact_sum.h"
#include "kernels/reference/reference.h"

namespace {

using ballast::kernels::CellNorm;
using ballast::kernels::CodecSpec;
using ballast::kernels::DType;
using ballast::kernels::ExactSum;
using ballast::kernels::HyperParameters;
using ballast::kernels::kCellElements;
using ballast::kernels::OptimizerKind;
using ballast::kernels::RankRange;
using ballast::kernels::Reference;
using ballast::kernels::StepScalars;
using ballast::kernels::UnpackSpec;

bool IsDType(int dtype) { return dtype >= 1 && dtype <= 3; }
bool IsKind(int kind) {
  return kind <= 255 && IsKnown(static_cast<OptimizerKind>(kind));
}

ExactSum SumFrom(const uint64_t* limbs) {
  ExactSum sum;
  ExactSum::FromLimbs({limbs, ExactSum::kLimbs}, &sum);
  return sum;
}

void SumTo(const ExactSum& sum, uint64_t* limbs) {
  std::copy(sum.limbs().begin(), sum.limbs().end(), limbs);
}

}  // namespace

int ballast_reference_scalars_bytes(void) { return sizeof(StepScalars); }

int ballast_reference_limbs(void) { return ExactSum::kLimbs; }

int ballast_reference_mean(int dtype, int world_size,
                           const void* const* sources, int64_t count,
                           float* out) {
  if (!IsDType(dtype) || world_size < 1 || count < 0) return 0;
  const auto ranks = static_cast<size_t>(world_size);
  Reference().tree_sum(static_cast<DType>(dtype), {sources, ranks}, count, out);
  const std::array<RankRange, 1> all = {{{0, world_size}}};
  const std::array<const float*, 1> parts = {out};
  Reference().finish_mean(all, parts, world_size, count, out);
  return 1;
}

int ballast_reference_norm2(const float* x, int64_t count, uint64_t* limbs) {
  ExactSum sum = SumFrom(limbs);
  bool finite = true;
  for (int64_t begin = 0; begin < count; begin += kCellElements) {
    const CellNorm norm = Reference().cell_norm(
        x + begin, std::min(kCellElements, count - begin));
    finite = finite && norm.finite;
    sum.Add(norm.norm2);
  }
  SumTo(sum, limbs);
  return finite ? 1 : 0;
}

void ballast_reference_limbs_add(double value, uint64_t* limbs) {
  ExactSum sum = SumFrom(limbs);
  sum.Add(value);
  SumTo(sum, limbs);
}

double ballast_reference_limbs_value(const uint64_t* limbs) {
  return SumFrom(limbs).ToDouble();
}

float ballast_reference_clip_factor(double norm2, double max_norm) {
  return ballast::kernels::ClipFactor(norm2, max_norm);
}

int ballast_reference_scalars(int kind, const double hyper[10], int64_t step,
                              float clip, void* scalars) {
  if (!IsKind(kind) || step < 1) return 0;
  const HyperParameters parameters{.lr = hyper[0],
                                   .beta1 = hyper[1],
                                   .beta2 = hyper[2],
                                   .eps = hyper[3],
                                   .weight_decay = hyper[4],
                                   .momentum = hyper[5],
                                   .dampening = hyper[6],
                                   .nesterov = hyper[7] != 0,
                                   .lr_decay = hyper[8],
                                   .initial_accumulator_value = hyper[9]};
  const StepScalars prepared = ballast::kernels::PrepareScalars(
      static_cast<OptimizerKind>(kind), parameters, step, clip);
  std::memcpy(scalars, &prepared, sizeof(prepared));
  return 1;
}

int ballast_reference_step(int kind, const void* scalars, int64_t count,
                           const float* gradient, float* master, float* m,
                           float* v, int weight_dtype, void* weight_out) {
  if (!IsKind(kind) || !IsDType(weight_dtype) || count < 0) return 0;
  StepScalars bits;
  std::memcpy(&bits, scalars, sizeof(bits));
  Reference().optimizer_step(static_cast<OptimizerKind>(kind), bits, count,
                             gradient, master, m, v,
                             static_cast<DType>(weight_dtype), weight_out);
  return 1;
}

int ballast_reference_cast(const float* in, int dtype, int64_t count,
                           void* out) {
  if (!IsDType(dtype) || count < 0) return 0;
  Reference().cast(in, static_cast<DType>(dtype), count, out);
  return 1;
}

int ballast_reference_widen(const void* in, int dtype, int64_t count,
                            float* out) {
  if (!IsDType(dtype) || count < 0) return 0;
  Reference().widen(in, static_cast<DType>(dtype), count, out);
  return 1;
}

int64_t ballast_reference_encoded_bytes(uint64_t spec, int64_t count) {
  CodecSpec codec;
  if (!UnpackSpec(spec, &codec) || count < 0) return -1;
  return ballast::kernels::EncodedBytes(codec, count);
}

int ballast_reference_encode(uint64_t spec, uint64_t key, int64_t first,
                             int64_t count, const float* in, uint8_t* out) {
  CodecSpec codec;
  if (!UnpackSpec(spec, &codec) || count < 0 || first < 0 ||
      first % kCellElements != 0) {
    return 0;
  }
  Reference().encode(codec, key, first, count, in, out);
  return 1;
}

int ballast_reference_decode(uint64_t spec, int64_t count, const uint8_t* in,
                             float* out) {
  CodecSpec codec;
  if (!UnpackSpec(spec, &codec) || count < 0) return 0;
  Reference().decode(codec, count, in, out);
  return 1;
}

int ballast_reference_decode_add(uint64_t spec, int64_t count,
                                 const uint8_t* in, float* out) {
  CodecSpec codec;
  if (!UnpackSpec(spec, &codec) || count < 0) return 0;
  Reference().decode_add(codec, count, in, out);
  return 1;
}
