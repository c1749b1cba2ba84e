#include "kernels/host/fuzz.h"

#include <cmath>

#include "kernels/float_formats.h"
#include "kernels/host/host.h"

namespace ballast::kernels::fuzz {
namespace {

enum Kind {
  kGradients,
  kAnyBits,
  kZeros,
  kHuge,
  kSubnormals,
  kTies,
  kKinds,
};

float One(Kind kind, Random* random) {
  const auto bits = static_cast<uint32_t>(random->Next() >> 32);
  const uint32_t sign = bits & 0x80000000u;
  switch (kind) {
    case kGradients:  // 2^-27 … 2^5
      return FromBits(sign | ((100 + (bits & 31)) << 23) |
                      ((bits >> 5) & 0x7fffffu));
    case kAnyBits:
      return FromBits(bits);
    case kHuge:
      return FromBits(sign | Bits((bits & 7) != 0 ? 1e30f : 3.4028235e38f));
    case kSubnormals:
      return FromBits(sign | (bits & 0x7fffffu));
    case kTies:  // with an absmax of 127 or 7: codes, and halves of codes
      return static_cast<float>(static_cast<int>(bits & 511) - 254) / 2;
    default:
      return FromBits(sign);
  }
}

}  // namespace

std::vector<Tested> HostTables() {
  std::vector<Tested> tables;
  for (const std::string& name : HostTargets()) {
    if (name != "SCALAR") tables.push_back({name, *HostFor(name)});
  }
  return tables;
}

uint64_t Random::Next() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::vector<float> Floats(int64_t count, Random* random) {
  std::vector<float> values(count);
  // Mostly gradients, so that blocks without NaN are well covered.
  const int choice = random->Below(2 * kKinds);
  const bool is_mixed = choice == 2 * kKinds - 1;
  Kind kind = choice < kKinds ? static_cast<Kind>(choice) : kGradients;
  for (int64_t i = 0; i < count; ++i) {
    if (is_mixed && random->Below(64) == 0) {
      kind = static_cast<Kind>(random->Below(kKinds));
    }
    values[i] = One(kind, random);
  }
  return values;
}

std::vector<uint16_t> Halves(int64_t count, Random* random) {
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) {
    value = static_cast<uint16_t>(random->Next() >> 48);
  }
  return values;
}

std::string ForEachCount(
    int64_t elements,
    const std::function<std::string(Random*, int64_t)>& check) {
  Random random(1);
  for (int64_t small = 0; small <= 70; ++small) {
    if (std::string wrong = check(&random, small); !wrong.empty()) return wrong;
  }
  for (int round = 0; elements > 0; ++round) {
    int64_t count = 2047 + round % 3;
    if (round % 6 >= 3) count = random.Below(70000);
    if (std::string wrong = check(&random, count); !wrong.empty()) {
      return wrong;
    }
    elements -= count;
  }
  return "";
}

bool Same(float a, float b) {
  return Bits(a) == Bits(b) || (std::isnan(a) && std::isnan(b));
}

}  // namespace ballast::kernels::fuzz
