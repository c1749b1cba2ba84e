// The scalar reference behind a C boundary, for tests in other languages
// that compare a running daemon with it bit for bit (tests/golden/reference.py
// wraps it). Not part of the product: nothing installed links it.
//
// Values of dtypes, optimizer kinds and specs are those of the wire
// (FORMAT.md). Functions that can refuse return 1 for done, 0 for refused
// with no output written.
#ifndef KERNELS_REFERENCE_C_H_
#define KERNELS_REFERENCE_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Bytes of the scalars of a step; limbs of an exact sum.
int ballast_reference_scalars_bytes(void);
int ballast_reference_limbs(void);

// Canonical-tree sum of `sources` (rank order), divided by their number.
int ballast_reference_mean(int dtype, int world_size,
                           const void* const* sources, int64_t count,
                           float* out);

// Adds the norm^2 of one tensor's cells to an exact sum (limbs start as
// zeros). 0 if an element is not finite: its cell is left out.
int ballast_reference_norm2(const float* x, int64_t count, uint64_t* limbs);
void ballast_reference_limbs_add(double value, uint64_t* limbs);
double ballast_reference_limbs_value(const uint64_t* limbs);

float ballast_reference_clip_factor(double norm2, double max_norm);

// hyper: lr, beta1, beta2, eps, weight_decay, momentum, dampening, nesterov,
// lr_decay, initial_accumulator_value.
int ballast_reference_scalars(int kind, const double hyper[10], int64_t step,
                              float clip, void* scalars);
int ballast_reference_step(int kind, const void* scalars, int64_t count,
                           const float* gradient, float* master, float* m,
                           float* v, int weight_dtype, void* weight_out);

int ballast_reference_cast(const float* in, int dtype, int64_t count,
                           void* out);
int ballast_reference_widen(const void* in, int dtype, int64_t count,
                            float* out);

// -1 if the spec is refused.
int64_t ballast_reference_encoded_bytes(uint64_t spec, int64_t count);
int ballast_reference_encode(uint64_t spec, uint64_t key, int64_t first,
                             int64_t count, const float* in, uint8_t* out);
int ballast_reference_decode(uint64_t spec, int64_t count, const uint8_t* in,
                             float* out);
int ballast_reference_decode_add(uint64_t spec, int64_t count,
                                 const uint8_t* in, float* out);

#ifdef __cplusplus
}
#endif

#endif  // KERNELS_REFERENCE_C_H_
