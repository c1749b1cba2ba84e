// The counter-based random numbers of stochastic rounding (FORMAT.md,
// "Random numbers"): a pure function of seed, job, tensor, step, hop and
// element, so that threads, chunks and arrival order change nothing.
#ifndef KERNELS_STOCHASTIC_H_
#define KERNELS_STOCHASTIC_H_

#include <cstdint>
#include <string_view>

namespace ballast::kernels {

// SplitMix64's finaliser, a bijection.
constexpr uint64_t Mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

inline constexpr uint64_t kGolden64 = 0x9e3779b97f4a7c15u;

// FNV-1a, 64 bits, of the job's name.
constexpr uint64_t JobKey(std::string_view job) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : job) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

// One key per encoded tensor, step and hop. `hop` counts the encodings that
// a value goes through within a step, from 0.
constexpr uint64_t StochasticKey(uint64_t seed, uint64_t job, uint64_t tensor,
                                 uint64_t step, uint64_t hop) {
  uint64_t key = seed;
  for (const uint64_t word : {job, tensor, step, hop}) {
    key = Mix64((key + kGolden64) ^ word);
  }
  return key;
}

// `cell` is the cell's index in its tensor.
constexpr uint64_t CellKey(uint64_t key, uint64_t cell) {
  return Mix64(key + (cell + 1) * kGolden64);
}

// 32-bit operations only, for SIMD's sake; `index` is within the cell.
constexpr uint32_t StochasticBits(uint64_t cell_key, uint32_t index) {
  uint32_t x = static_cast<uint32_t>(cell_key) + index * 0x9e3779b9u;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x ^= static_cast<uint32_t>(cell_key >> 32);
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// A multiple of 2^-24 in [0, 1).
constexpr float StochasticUniform(uint64_t cell_key, uint32_t index) {
  return static_cast<float>(StochasticBits(cell_key, index) >> 8) * 0x1p-24f;
}

}  // namespace ballast::kernels

#endif  // KERNELS_STOCHASTIC_H_
