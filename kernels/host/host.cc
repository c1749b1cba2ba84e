#include "kernels/host/host.h"

#include "hwy/highway.h"
#include "kernels/host/convert.h"
#include "kernels/host/decode.h"
#include "kernels/host/encode.h"
#include "kernels/host/norm.h"
#include "kernels/host/optimizer.h"
#include "kernels/host/reduce.h"
#include "kernels/reference/reference.h"

namespace ballast::kernels {
namespace {

struct Target {
  std::string name;
  Kernels table;
};

std::vector<Target> FillTargets() {
  std::vector<Target> targets;
  // Best first: Highway gives better instruction sets lower bits.
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    Kernels table = Reference();
    host::AddConvert(target, &table);
    host::AddDecode(target, &table);
    host::AddEncode(target, &table);
    host::AddNorm(target, &table);
    host::AddOptimizer(target, &table);
    host::AddReduce(target, &table);
    targets.push_back({hwy::TargetName(target), table});
  }
  return targets;
}

const std::vector<Target>& Targets() {
  static const std::vector<Target> targets = FillTargets();
  return targets;
}

}  // namespace

const Kernels& Host() { return Targets().front().table; }

std::string HostTarget() { return Targets().front().name; }

std::vector<std::string> HostTargets() {
  std::vector<std::string> names;
  for (const Target& target : Targets()) names.push_back(target.name);
  return names;
}

const Kernels* HostFor(std::string_view name) {
  for (const Target& target : Targets()) {
    if (target.name == name) return &target.table;
  }
  return nullptr;
}

}  // namespace ballast::kernels
