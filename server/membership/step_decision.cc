#include "server/membership/step_decision.h"

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/exact_sum.h"
#include "proto/group_values.h"
#include "server/membership/action.h"

namespace ballast::membership {
namespace {

v1::Abort AbortOf(const v1::Vote& vote, const absl::Status& why) {
  v1::Abort abort;
  abort.set_step(vote.step());
  abort.set_code(static_cast<int>(why.code()));
  abort.set_text(std::string(why.message()));
  return abort;
}

proto::GroupValues ToValues(const v1::StepGroup& group) {
  return {.lr = group.lr(),
          .beta1 = group.beta1(),
          .beta2 = group.beta2(),
          .eps = group.eps(),
          .weight_decay = group.weight_decay(),
          .momentum = group.momentum(),
          .dampening = group.dampening(),
          .nesterov = group.nesterov(),
          .lr_decay = group.lr_decay(),
          .initial_accumulator_value = group.initial_accumulator_value(),
          .max_norm = group.max_norm(),
          .load = group.load()};
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

// The values of node 0 against those of `node`.
absl::Status CompareGroups(const StepRules& rules, const v1::Vote& first,
                           const v1::Vote& other, int node) {
  if (first.groups_size() != other.groups_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "node 0 has ", first.groups_size(), " param groups but node ", node,
        " has ", other.groups_size(), "; all ranks must pass the same ones"));
  }
  for (int g = 0; g < first.groups_size(); ++g) {
    const proto::GroupValues a = ToValues(first.groups(g));
    const proto::GroupValues b = ToValues(other.groups(g));
    const proto::GroupField* field = proto::FirstDifference(a, b);
    if (field == nullptr) continue;
    return absl::InvalidArgumentError(proto::DescribeDifference(
        g, *field, a, 0, b, node * rules.local_world_size));
  }
  return absl::OkStatus();
}

// What the workers gave for this step, else the job's. Each node has checked
// that its groups have the same.
double MaxNorm(const StepRules& rules, const v1::Vote& vote) {
  const double of_step =
      vote.groups_size() == 0 ? 0 : vote.groups(0).max_norm();
  return of_step > 0 ? of_step : rules.gradient_clipping;
}

uint32_t LoadOf(const v1::Vote& vote) {
  const double load = vote.groups_size() == 0 ? 0 : vote.groups(0).load();
  return load == 1 || load == 2 ? static_cast<uint32_t>(load) : 0;
}

v1::Commit MakeCommit(const StepRules& rules, const v1::Vote& first,
                      bool skipped, const kernels::ExactSum& norm2) {
  v1::Commit commit;
  commit.set_step(first.step());
  commit.set_skipped(skipped);
  *commit.mutable_groups() = first.groups();
  commit.set_load(LoadOf(first));
  commit.set_rank0_cursor(first.rank0_cursor());
  if (skipped) {
    commit.set_grad_norm(
        commit.load() != 0 ? 0 : std::numeric_limits<double>::quiet_NaN());
    commit.set_clip_factor(1);
    const bool starts_anew =
        commit.load() == static_cast<uint32_t>(proto::Load::kResetState);
    commit.set_optimizer_step(starts_anew ? 0 : rules.optimizer_step);
    return commit;
  }
  const double sum = norm2.ToDouble();
  const float clip = kernels::ClipFactor(sum, MaxNorm(rules, first));
  commit.set_grad_norm(std::sqrt(sum));
  commit.set_clip_factor(clip);
  commit.set_optimizer_step(rules.optimizer_step + 1);
  for (const v1::StepGroup& group : first.groups()) {
    const kernels::StepScalars scalars =
        kernels::PrepareScalars(rules.optimizer, ToHyperParameters(group),
                                commit.optimizer_step(), clip);
    commit.add_scalars(reinterpret_cast<const char*>(&scalars),
                       sizeof(scalars));
  }
  return commit;
}

}  // namespace

absl::Status CheckSameWeights(std::span<const v1::Vote* const> votes) {
  std::map<uint64_t, std::vector<std::string>> nodes;
  for (size_t node = 0; node < votes.size(); ++node) {
    nodes[votes[node]->published_digest()].push_back(
        absl::StrCat("node ", node));
  }
  if (nodes.size() == 1) return absl::OkStatus();
  std::vector<std::string> texts;
  for (const auto& [digest, names] : nodes) {
    texts.push_back(
        absl::StrFormat("%016x on %s", digest, absl::StrJoin(names, ", ")));
  }
  return absl::DataLossError(absl::StrCat(
      "the published weights of version ", votes.front()->step() - 1,
      " are not the same everywhere: ", absl::StrJoin(texts, "; ")));
}

std::variant<v1::Commit, v1::Abort> DecideStep(
    const StepRules& rules, std::span<const v1::Vote* const> votes,
    StepErrors* errors) {
  const v1::Vote& first = *votes.front();
  for (const v1::Vote* vote : votes) {
    if (vote->refusal_code() == 0) continue;
    return AbortOf(*vote, ToStatus(vote->refusal_code(), vote->refusal_text()));
  }
  kernels::ExactSum norm2;
  bool skipped = LoadOf(first) != 0;
  for (size_t node = 0; node < votes.size(); ++node) {
    const v1::Vote& vote = *votes[node];
    const absl::Status same = CompareGroups(rules, first, vote, node);
    if (!same.ok()) return AbortOf(vote, same);
    kernels::ExactSum sum;
    const std::vector<uint64_t> limbs(vote.norm2_limbs().begin(),
                                      vote.norm2_limbs().end());
    if (!kernels::ExactSum::FromLimbs(limbs, &sum)) {
      return AbortOf(
          vote, absl::DataLossError(absl::StrCat(
                    "the vote of node ", node, " has ", limbs.size(),
                    " norm limbs instead of ", kernels::ExactSum::kLimbs)));
    }
    norm2.Merge(sum);
    skipped = skipped || vote.non_finite();
  }
  v1::Commit commit = MakeCommit(rules, first, skipped, norm2);
  if (skipped || rules.metered == nullptr) return commit;
  absl::StatusOr<StepErrors> sums = SumErrors(*rules.metered, votes);
  if (!sums.ok()) return AbortOf(first, sums.status());
  *errors = *std::move(sums);
  for (const layout::Path path : layout::kPaths) {
    const auto p = static_cast<size_t>(path);
    if ((*rules.metered)[p].empty()) continue;
    *(path == layout::Path::kGradients ? commit.mutable_gradient_errors()
                                       : commit.mutable_weight_errors()) =
        MakeReport((*rules.metered)[p], (*errors)[p]);
  }
  return commit;
}

}  // namespace ballast::membership
