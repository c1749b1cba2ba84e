// Every codec of the registry with every parameter that a policy can give it,
// on every table of kernels that this machine can choose; and input for them.
#ifndef SERVER_COLLECTIVE_CONFORMANCE_CODEC_CASES_H_
#define SERVER_COLLECTIVE_CONFORMANCE_CODEC_CASES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "kernels/host/host.h"
#include "kernels/kernels.h"
#include "kernels/reference/reference.h"
#include "server/base/random.h"
#include "server/layout/codec_table.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/policy.h"

namespace ballast::collective {

inline constexpr char kReference[] = "Reference";

// The table of SCALAR is the reference's (kernels/host/host_test).
inline std::vector<std::string> Tables() {
  std::vector<std::string> names = {kReference};
  for (std::string& name : kernels::HostTargets()) {
    if (name != "SCALAR") names.push_back(std::move(name));
  }
  return names;
}

inline const kernels::Kernels* TableNamed(const std::string& name) {
  return name == kReference ? &kernels::Reference() : kernels::HostFor(name);
}

struct Case {
  layout::CodecChoice choice;
  kernels::DType unquantized = kernels::DType::kFloat32;
  std::string table = kReference;
};

inline std::vector<Case> CasesOfOneTable() {
  std::vector<Case> cases;
  for (const layout::CodecRow& row : layout::CodecTable()) {
    if (row.id == layout::CodecId::kNone) {
      for (const kernels::DType dtype :
           {kernels::DType::kFloat32, kernels::DType::kBFloat16,
            kernels::DType::kFloat16}) {
        cases.push_back({{row.id, {}}, dtype});
      }
      continue;
    }
    for (const int block : {32, 64, 128, 256, 512, 1024, 2048}) {
      for (const auto range : {kernels::Range::kSym, kernels::Range::kClip16}) {
        for (const int hadamard : {0, 32}) {
          for (const auto rounding :
               {kernels::Rounding::kNearest, kernels::Rounding::kStochastic}) {
            cases.push_back(
                {{row.id, {row.bits, block, range, hadamard, rounding}}});
          }
        }
      }
    }
  }
  return cases;
}

inline std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const std::string& table : Tables()) {
    for (Case c : CasesOfOneTable()) {
      c.table = table;
      cases.push_back(c);
    }
  }
  return cases;
}

inline std::string NameOf(const Case& c) {
  const std::string table = c.table + "_";
  if (!c.choice.quantizes()) {
    return table + std::string(kernels::Name(c.unquantized));
  }
  const kernels::CodecSpec& spec = c.choice.block;
  return table + std::string(layout::Name(c.choice.codec)) + "_" +
         std::to_string(spec.block) +
         (spec.range == kernels::Range::kSym ? "_sym" : "_clip16") +
         (spec.hadamard != 0 ? "_hadamard" : "") +
         (spec.rounding == kernels::Rounding::kNearest ? "" : "_stochastic");
}

inline std::vector<float> Noise(size_t count, uint64_t seed) {
  base::SeededRandom random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(random.Below(2'000'001)) / 1e6f - 1;
  }
  return values;
}

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CONFORMANCE_CODEC_CASES_H_
