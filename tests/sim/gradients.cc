#include "tests/sim/gradients.h"

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/reference/reference.h"

namespace ballast::sim {
namespace {

constexpr uint64_t kHashStart = 0xcbf29ce484222325;

uint64_t Mix(uint64_t x) {  // SplitMix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// In (-1, 1), of magnitudes that make the order of a float sum show.
float Noise(uint64_t key) {
  const uint64_t bits = Mix(key);
  const double unit = static_cast<double>(bits >> 11) * 0x1p-53;
  const int exponent = static_cast<int>(bits & 7);
  return static_cast<float>(std::ldexp(2 * unit - 1, -exponent));
}

}  // namespace

uint64_t Hash(const void* data, size_t size, uint64_t seed) {
  uint64_t hash = kHashStart ^ seed;
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

std::vector<std::byte> InitialWeights(const layout::TensorSpec& tensor,
                                      int64_t num_elements) {
  const uint64_t key = Hash(tensor.name.data(), tensor.name.size(), 1);
  std::vector<float> wide(num_elements);
  for (int64_t i = 0; i < num_elements; ++i) wide[i] = Noise(key + i);
  std::vector<std::byte> weights(num_elements * kernels::SizeOf(tensor.dtype));
  kernels::Reference().cast(wide.data(), tensor.dtype, num_elements,
                            weights.data());
  return weights;
}

void LoadedWeights(const layout::TensorSpec& tensor, int64_t step,
                   int64_t begin, int64_t end, std::byte* out) {
  const uint64_t key =
      Mix(Hash(tensor.name.data(), tensor.name.size(), 3) ^ Mix(step));
  std::vector<float> wide(end - begin);
  for (int64_t i = begin; i < end; ++i) wide[i - begin] = Noise(key + i);
  kernels::Reference().cast(wide.data(), tensor.dtype, end - begin, out);
}

void ComputeGradient(const layout::TensorSpec& tensor, int rank, int64_t step,
                     int64_t begin, int64_t end, const std::byte* weights,
                     std::byte* out) {
  const int64_t count = end - begin;
  std::vector<float> wide(count, 1.0f);
  if (!absl::StartsWith(tensor.name, "ones")) {
    kernels::Reference().widen(weights, tensor.dtype, count, wide.data());
    const uint64_t key = Mix(Hash(tensor.name.data(), tensor.name.size(), 2) ^
                             Mix(static_cast<uint64_t>(rank) << 40 ^ step));
    for (int64_t i = 0; i < count; ++i) {
      wide[i] = Noise(key + begin + i) + 0.125f * wide[i];
    }
  }
  kernels::Reference().cast(wide.data(), tensor.dtype, count, out);
}

std::string CursorOf(int rank, int64_t step) {
  return absl::StrCat("rank ", rank, " step ", step);
}

}  // namespace ballast::sim
