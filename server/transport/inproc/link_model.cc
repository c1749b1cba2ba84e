#include "server/transport/inproc/link_model.h"

#include <algorithm>
#include <utility>

namespace ballast::transport {

LinkModel::LinkModel(base::Executor* executor, uint64_t seed,
                     const LinkFaults& faults)
    : executor_(executor), random_(seed), faults_(faults) {}

LinkModel::Link LinkModel::Unordered(NodeRank a, NodeRank b) {
  return {std::min(a, b), std::max(a, b)};
}

void LinkModel::Partition(NodeRank a, NodeRank b) {
  cut_.insert(Unordered(a, b));
}

void LinkModel::Heal(NodeRank a, NodeRank b) {
  cut_.erase(Unordered(a, b));
  for (auto& fn : on_heal_) fn();
}

void LinkModel::HealAll() {
  cut_.clear();
  for (auto& fn : on_heal_) fn();
}

bool LinkModel::IsCut(NodeRank a, NodeRank b) const {
  return cut_.contains(Unordered(a, b));
}

void LinkModel::OnHeal(absl::AnyInvocable<void()> fn) {
  on_heal_.push_back(std::move(fn));
}

bool LinkModel::Draw(double probability) {
  constexpr uint64_t kParts = 1'000'000;
  if (probability <= 0) return false;
  return static_cast<double>(random_.Below(kParts)) < probability * kParts;
}

absl::Duration LinkModel::DrawLatency() {
  const int64_t spread =
      absl::ToInt64Nanoseconds(faults_.max_delay - faults_.min_delay);
  absl::Duration latency = faults_.min_delay;
  if (spread > 0) latency += absl::Nanoseconds(random_.Below(spread + 1));
  return latency;
}

absl::Duration LinkModel::TimeOf(uint64_t bytes) const {
  if (faults_.bytes_per_second <= 0) return absl::ZeroDuration();
  return absl::Seconds(static_cast<double>(bytes) / faults_.bytes_per_second);
}

absl::Duration LinkModel::DrawDelay(uint64_t bytes) {
  return DrawLatency() + TimeOf(bytes);
}

absl::Duration LinkModel::DrawDelay(NodeRank from, NodeRank to,
                                    uint64_t bytes) {
  if (clock_ == nullptr) return DrawDelay(bytes);
  const absl::Time now = clock_->Now();
  absl::Time& busy_until = busy_until_[{from, has_interfaces_ ? from : to}];
  busy_until = std::max(busy_until, now) + TimeOf(bytes);
  const absl::Duration wait = busy_until - now - TimeOf(faults_.burst_bytes);
  return std::max(wait, absl::ZeroDuration()) + DrawLatency();
}

void LinkModel::CountBytes(NodeRank from, NodeRank to, uint64_t bytes) {
  bytes_[{from, to}] += bytes;
}

uint64_t LinkModel::link_bytes(NodeRank from, NodeRank to) const {
  const auto it = bytes_.find({from, to});
  return it == bytes_.end() ? 0 : it->second;
}

uint64_t LinkModel::sent_bytes(NodeRank from) const {
  uint64_t total = 0;
  for (const auto& [link, bytes] : bytes_) {
    if (link.first == from) total += bytes;
  }
  return total;
}

}  // namespace ballast::transport
