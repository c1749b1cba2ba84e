#include "server/engine/group_values.h"

#include "absl/strings/str_cat.h"
#include "proto/group_values.h"

namespace ballast::engine {
namespace {

absl::Status CheckTwo(const GroupList& a, const GroupList& b, Rank rank_a,
                      Rank rank_b) {
  if (a.size() != b.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank_a.value(), " has ", a.size(), " param groups but rank ",
        rank_b.value(), " has ", b.size()));
  }
  for (size_t g = 0; g < a.size(); ++g) {
    const proto::GroupField* field = proto::FirstDifference(a[g], b[g]);
    if (field == nullptr) continue;
    return absl::InvalidArgumentError(
        proto::DescribeDifference(static_cast<int>(g), *field, a[g],
                                  rank_a.value(), b[g], rank_b.value()));
  }
  return absl::OkStatus();
}

}  // namespace

v1::StepGroup ToStepGroup(const proto::GroupValues& values) {
  v1::StepGroup group;
  group.set_lr(values.lr);
  group.set_beta1(values.beta1);
  group.set_beta2(values.beta2);
  group.set_eps(values.eps);
  group.set_weight_decay(values.weight_decay);
  group.set_momentum(values.momentum);
  group.set_dampening(values.dampening);
  group.set_nesterov(values.nesterov);
  return group;
}

kernels::HyperParameters ToHyperParameters(const v1::StepGroup& group) {
  return {.lr = group.lr(),
          .beta1 = group.beta1(),
          .beta2 = group.beta2(),
          .eps = group.eps(),
          .weight_decay = group.weight_decay(),
          .momentum = group.momentum(),
          .dampening = group.dampening(),
          .nesterov = group.nesterov() != 0};
}

absl::Status CheckRanksAgree(std::span<const GroupList> by_rank, Rank first) {
  for (size_t l = 1; l < by_rank.size(); ++l) {
    const Rank rank(first.value() + static_cast<int32_t>(l));
    const absl::Status same = CheckTwo(by_rank[0], by_rank[l], first, rank);
    if (!same.ok()) return same;
  }
  return absl::OkStatus();
}

}  // namespace ballast::engine
