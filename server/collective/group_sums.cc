#include "server/collective/group_sums.h"

#include <algorithm>
#include <utility>

namespace ballast::collective {
namespace {

class Planner {
 public:
  explicit Planner(std::span<const kernels::RankRange> nodes) : nodes_(nodes) {}

  void Add(const kernels::RankRange& subtree, int place) {
    const int sum = Sum(subtree, place);
    if (sum != place) adds_.push_back({.left = sum, .into = place});
  }

  std::vector<GroupAdd> Take() { return std::move(adds_); }

 private:
  // Where the subtree's sum lies then: in `place`, or where it was.
  int Sum(const kernels::RankRange& subtree, int place) {
    const auto first = std::ranges::lower_bound(nodes_, subtree.first, {},
                                                &kernels::RankRange::first);
    const int node = static_cast<int>(first - nodes_.begin());
    if (*first == subtree) return node;
    const int left_count = kernels::LeftCount(subtree.count);
    const kernels::RankRange right_subtree{subtree.first + left_count,
                                           subtree.count - left_count};
    // The right one first, over the first of its own nodes' sums.
    const auto right_first = std::ranges::lower_bound(
        nodes_, right_subtree.first, {}, &kernels::RankRange::first);
    const int right =
        Sum(right_subtree, static_cast<int>(right_first - nodes_.begin()));
    const int left = Sum({subtree.first, left_count}, place);
    adds_.push_back({left, right, place});
    return place;
  }

  const std::span<const kernels::RankRange> nodes_;
  std::vector<GroupAdd> adds_;
};

}  // namespace

std::vector<GroupAdd> PlanGroupSums(std::span<const kernels::RankRange> nodes,
                                    std::span<const kernels::RankRange> group) {
  Planner planner(nodes);
  int place = static_cast<int>(nodes.size());
  for (const kernels::RankRange& subtree : group) planner.Add(subtree, place++);
  return planner.Take();
}

}  // namespace ballast::collective
