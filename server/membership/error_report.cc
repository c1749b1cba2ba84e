#include "server/membership/error_report.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"

namespace ballast::membership {
namespace {

using layout::Path;

double RelativeOf(const kernels::ExactSum& error2,
                  const kernels::ExactSum& value2) {
  const double value = value2.ToDouble();
  return value > 0 ? std::sqrt(error2.ToDouble() / value) : 0;
}

bool AddLimbs(const v1::ExactLimbs& limbs, kernels::ExactSum* sum) {
  constexpr size_t kLimbs = kernels::ExactSum::kLimbs;
  if (limbs.first() > kLimbs ||
      limbs.limbs_size() > kernels::ExactSum::kLimbs ||
      limbs.first() + limbs.limbs_size() > kLimbs) {
    return false;
  }
  std::array<uint64_t, kLimbs> all{};
  std::copy(limbs.limbs().begin(), limbs.limbs().end(),
            all.begin() + limbs.first());
  kernels::ExactSum added;
  if (!kernels::ExactSum::FromLimbs(all, &added)) return false;
  sum->Merge(added);
  return true;
}

const v1::PathErrors& ErrorsOf(const v1::Vote& vote, Path path) {
  return path == Path::kGradients ? vote.gradient_errors()
                                  : vote.weight_errors();
}

absl::Status Malformed(size_t node, Path path, const std::string& what) {
  return absl::DataLossError(absl::StrCat(
      "the vote of node ", node, " has errors of ",
      std::string(layout::Name(path)), " that do not fit the job: ", what));
}

absl::Status AddVote(size_t node, Path path, const layout::MeterWindow& window,
                     const v1::PathErrors& vote,
                     std::vector<TensorErrorSum>* sums) {
  if (vote.first() != window.first || vote.tensors_size() != window.count) {
    return Malformed(
        node, path,
        absl::StrCat("tensors ", vote.first(), " and the next ",
                     vote.tensors_size(), " instead of ", window.first,
                     " and the next ", window.count));
  }
  for (int i = 0; i < window.count; ++i) {
    const v1::TensorErrors& errors = vote.tensors(i);
    TensorErrorSum& sum = (*sums)[i];
    if (!AddLimbs(errors.error2(), &sum.error2) ||
        !AddLimbs(errors.value2(), &sum.value2) ||
        !AddLimbs(errors.narrower_error2(), &sum.narrower_error2) ||
        errors.clipped() > errors.sampled() ||
        errors.sampled() > uint64_t{1} << 40) {
      return Malformed(node, path, absl::StrCat("sums of tensor ", i));
    }
    sum.sampled += errors.sampled();
    sum.clipped += errors.clipped();
  }
  return absl::OkStatus();
}

}  // namespace

double TensorErrorSum::Relative() const { return RelativeOf(error2, value2); }
double TensorErrorSum::NarrowerRelative() const {
  return RelativeOf(narrower_error2, value2);
}

absl::StatusOr<StepErrors> SumErrors(const MeteredTensors& metered,
                                     std::span<const v1::Vote* const> votes) {
  StepErrors sums;
  const int64_t step = votes.front()->step();
  for (const Path path : layout::kPaths) {
    const auto p = static_cast<size_t>(path);
    const Step of(path == Path::kWeights ? step - 1 : step);
    const layout::MeterWindow window =
        layout::WindowOf(static_cast<int>(metered[p].size()), of);
    for (int i = 0; i < window.count; ++i) {
      sums[p].emplace_back().index = window.first + i;
    }
    bool is_known = true;
    for (size_t node = 0; node < votes.size(); ++node) {
      const v1::PathErrors& errors = ErrorsOf(*votes[node], path);
      if (path == Path::kWeights && errors.tensors_size() == 0) {
        is_known = false;
        continue;
      }
      RETURN_IF_ERROR(AddVote(node, path, window, errors, &sums[p]));
    }
    if (!is_known) sums[p].clear();
  }
  return sums;
}

v1::ErrorReport MakeReport(std::span<const TensorId> metered,
                           std::span<const TensorErrorSum> errors) {
  v1::ErrorReport report;
  kernels::ExactSum error2;
  kernels::ExactSum value2;
  uint64_t sampled = 0;
  uint64_t clipped = 0;
  std::vector<std::pair<double, int>> worst;
  for (const TensorErrorSum& sum : errors) {
    error2.Merge(sum.error2);
    value2.Merge(sum.value2);
    sampled += sum.sampled;
    clipped += sum.clipped;
    if (sum.sampled > 0) worst.emplace_back(-sum.Relative(), sum.index);
  }
  report.set_relative_error(RelativeOf(error2, value2));
  report.set_sampled(sampled);
  if (sampled > 0) {
    report.set_clipped_share(static_cast<double>(clipped) /
                             static_cast<double>(sampled));
  }
  const size_t num_worst = std::min(worst.size(), kMaxWorstTensors);
  std::partial_sort(worst.begin(), worst.begin() + num_worst, worst.end());
  for (size_t i = 0; i < num_worst; ++i) {
    v1::TensorError* const tensor = report.add_worst();
    tensor->set_tensor(metered[worst[i].second].value());
    tensor->set_relative_error(-worst[i].first);
  }
  return report;
}

}  // namespace ballast::membership
