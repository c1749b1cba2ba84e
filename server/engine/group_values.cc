#include "server/engine/group_values.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/group_values.h"

namespace ballast::engine {

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
  group.set_lr_decay(values.lr_decay);
  group.set_initial_accumulator_value(values.initial_accumulator_value);
  group.set_max_norm(values.max_norm);
  group.set_load(values.load);
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
          .nesterov = group.nesterov() != 0,
          .lr_decay = group.lr_decay(),
          .initial_accumulator_value = group.initial_accumulator_value()};
}

absl::Status CheckAgree(const GroupList& a, Rank rank_a, const GroupList& b,
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

absl::StatusOr<std::vector<kernels::StepScalars>> ParseScalars(
    const v1::Commit& commit, size_t num_groups) {
  const size_t num_scalars = commit.skipped() ? 0 : num_groups;
  if (static_cast<size_t>(commit.groups_size()) != num_groups ||
      static_cast<size_t>(commit.scalars_size()) != num_scalars) {
    return absl::DataLossError(absl::StrCat(
        "the commit of step ", commit.step(), " has ", commit.groups_size(),
        " groups and ", commit.scalars_size(), " scalars instead of ",
        num_groups, " and ", num_scalars));
  }
  std::vector<kernels::StepScalars> scalars;
  for (const std::string& bytes : commit.scalars()) {
    if (bytes.size() != sizeof(kernels::StepScalars)) {
      return absl::DataLossError(
          absl::StrCat("the commit of step ", commit.step(), " has ",
                       bytes.size(), " bytes of scalars"));
    }
    std::memcpy(&scalars.emplace_back(), bytes.data(), bytes.size());
  }
  return scalars;
}

}  // namespace ballast::engine
