#include "server/session/group_rules.h"

#include <cmath>
#include <string>

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

constexpr char kNonNegative[] = "must be finite and not negative";
constexpr char kBeta[] = "must be in [0, 1)";

constexpr Rule kCommonRules[] = {
    {"lr", &proto::GroupValues::lr, IsNonNegative, kNonNegative},
    {"weight_decay", &proto::GroupValues::weight_decay, IsNonNegative,
     kNonNegative},
};
constexpr Rule kAdamRules[] = {
    {"beta1", &proto::GroupValues::beta1, IsBeta, kBeta},
    {"beta2", &proto::GroupValues::beta2, IsBeta, kBeta},
    {"eps", &proto::GroupValues::eps, IsNonNegative, kNonNegative},
};
constexpr Rule kSgdRules[] = {
    {"momentum", &proto::GroupValues::momentum, IsNonNegative, kNonNegative},
    {"dampening", &proto::GroupValues::dampening, IsFinite, "must be finite"},
    {"nesterov", &proto::GroupValues::nesterov, IsFlag, "must be 0 or 1"},
};

absl::Status Refuse(size_t group, const char* field, double value,
                    const char* text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "param group ", group, ": ", field, " is ", value, ", ", text));
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

}  // namespace

absl::Status CheckGroups(kernels::OptimizerKind kind, bool has_momentum,
                         std::span<const proto::GroupValues> groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    absl::Status status = Check(i, groups[i], kCommonRules);
    if (status.ok()) {
      status = kind == kernels::OptimizerKind::kSgd
                   ? CheckSgd(i, groups[i], has_momentum)
                   : Check(i, groups[i], kAdamRules);
    }
    if (!status.ok()) return status;
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
  return {group.lr,           group.beta1,
          group.beta2,        group.eps,
          group.weight_decay, group.momentum,
          group.dampening,    group.nesterov ? 1.0 : 0.0};
}

kernels::HyperParameters FromValues(const proto::GroupValues& values) {
  return {values.lr,        values.beta1,        values.beta2,
          values.eps,       values.weight_decay, values.momentum,
          values.dampening, values.nesterov != 0};
}

}  // namespace ballast::session
