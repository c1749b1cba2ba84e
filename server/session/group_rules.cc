#include "server/session/group_rules.h"

#include <cmath>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace ballast::session {
namespace {

struct Rule {
  const char* field;
  double proto::GroupValues::*value;
  bool (*holds)(double);
  const char* text;
};

bool IsNonNegative(double v) { return std::isfinite(v) && v >= 0; }
bool IsBeta(double v) { return v >= 0 && v < 1; }
bool IsFinite(double v) { return std::isfinite(v); }
bool IsFlag(double v) { return v == 0 || v == 1; }
bool IsLoad(double v) { return v == 0 || v == 1 || v == 2; }

constexpr char kNonNegative[] = "must be finite and not negative";
constexpr char kBeta[] = "must be in [0, 1)";

constexpr Rule kCommonRules[] = {
    {"lr", &proto::GroupValues::lr, IsNonNegative, kNonNegative},
    {"weight_decay", &proto::GroupValues::weight_decay, IsNonNegative,
     kNonNegative},
    {"max_norm", &proto::GroupValues::max_norm, IsNonNegative, kNonNegative},
    {"load", &proto::GroupValues::load, IsLoad, "must be 0, 1 or 2"},
};
constexpr Rule kAdamRules[] = {
    {"beta1", &proto::GroupValues::beta1, IsBeta, kBeta},
    {"beta2", &proto::GroupValues::beta2, IsBeta, kBeta},
    {"eps", &proto::GroupValues::eps, IsNonNegative, kNonNegative},
};
constexpr Rule kLionRules[] = {
    {"beta1", &proto::GroupValues::beta1, IsBeta, kBeta},
    {"beta2", &proto::GroupValues::beta2, IsBeta, kBeta},
};
constexpr Rule kAdagradRules[] = {
    {"eps", &proto::GroupValues::eps, IsNonNegative, kNonNegative},
    {"lr_decay", &proto::GroupValues::lr_decay, IsNonNegative, kNonNegative},
    {"initial_accumulator_value",
     &proto::GroupValues::initial_accumulator_value, IsNonNegative,
     kNonNegative},
};
constexpr Rule kSgdRules[] = {
    {"momentum", &proto::GroupValues::momentum, IsNonNegative, kNonNegative},
    {"dampening", &proto::GroupValues::dampening, IsFinite, "must be finite"},
    {"nesterov", &proto::GroupValues::nesterov, IsFlag, "must be 0 or 1"},
};

absl::Status Refuse(size_t group, const char* field, double value,
                    std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("param group ", group, ": ",
                                                 field, " is ", value, ", ",
                                                 std::string(text)));
}

absl::Status Check(size_t index, const proto::GroupValues& group,
                   std::span<const Rule> rules) {
  for (const Rule& rule : rules) {
    const double value = group.*rule.value;
    if (!rule.holds(value)) {
      return Refuse(index, rule.field, value, rule.text);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSgd(size_t index, const proto::GroupValues& group,
                      bool has_momentum) {
  if (absl::Status s = Check(index, group, kSgdRules); !s.ok()) return s;
  if (group.momentum != 0 && !has_momentum) {
    return Refuse(index, "momentum", group.momentum,
                  "but the job began with momentum 0 in every group and keeps "
                  "no momentum buffers");
  }
  if (group.nesterov != 0 && (group.momentum == 0 || group.dampening != 0)) {
    return Refuse(index, "nesterov", group.nesterov,
                  "which needs a momentum and zero dampening");
  }
  return absl::OkStatus();
}

absl::Status CheckOwn(kernels::OptimizerKind kind, bool has_momentum,
                      size_t index, const proto::GroupValues& group) {
  switch (kind) {
    case kernels::OptimizerKind::kSgd:
      return CheckSgd(index, group, has_momentum);
    case kernels::OptimizerKind::kAdam:
    case kernels::OptimizerKind::kAdamW:
      return Check(index, group, kAdamRules);
    case kernels::OptimizerKind::kLion:
      return Check(index, group, kLionRules);
    case kernels::OptimizerKind::kAdagrad:
      return Check(index, group, kAdagradRules);
  }
  return absl::InternalError("an unknown optimizer");
}

}  // namespace

absl::Status CheckGroups(kernels::OptimizerKind kind, bool has_momentum,
                         std::span<const proto::GroupValues> groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    absl::Status status = Check(i, groups[i], kCommonRules);
    if (status.ok()) status = CheckOwn(kind, has_momentum, i, groups[i]);
    if (!status.ok()) return status;
    if (groups[i].max_norm != groups[0].max_norm) {
      return Refuse(i, "max_norm", groups[i].max_norm,
                    absl::StrCat("but group 0 has ", groups[0].max_norm,
                                 "; the norm is that of all groups together, "
                                 "so give the same in each"));
    }
    if (groups[i].load != groups[0].load) {
      return Refuse(i, "load", groups[i].load,
                    absl::StrCat("but group 0 has ", groups[0].load,
                                 "; all weights are loaded or none"));
    }
  }
  return absl::OkStatus();
}

bool AnyMomentum(std::span<const kernels::HyperParameters> groups) {
  for (const auto& group : groups) {
    if (group.momentum != 0) return true;
  }
  return false;
}

proto::GroupValues ToValues(const kernels::HyperParameters& group) {
  return {.lr = group.lr,
          .beta1 = group.beta1,
          .beta2 = group.beta2,
          .eps = group.eps,
          .weight_decay = group.weight_decay,
          .momentum = group.momentum,
          .dampening = group.dampening,
          .nesterov = group.nesterov ? 1.0 : 0.0,
          .lr_decay = group.lr_decay,
          .initial_accumulator_value = group.initial_accumulator_value,
          .max_norm = 0,
          .load = 0};
}

kernels::HyperParameters FromValues(const proto::GroupValues& values) {
  return {.lr = values.lr,
          .beta1 = values.beta1,
          .beta2 = values.beta2,
          .eps = values.eps,
          .weight_decay = values.weight_decay,
          .momentum = values.momentum,
          .dampening = values.dampening,
          .nesterov = values.nesterov != 0,
          .lr_decay = values.lr_decay,
          .initial_accumulator_value = values.initial_accumulator_value};
}

}  // namespace ballast::session
