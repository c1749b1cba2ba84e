#include "server/transport/routed/link_probe.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "server/base/status_macros.h"

namespace ballast::transport {
namespace {

// The first, which meets cold caches and bursts, does not count.
constexpr int kRepeats = 5;
constexpr int kLargeRepeats = 3;  // a second and a half at 16 Mbit/s
constexpr size_t kSmallBytes = 8;
constexpr size_t kLargeBytes = 1 << 20;
constexpr size_t kCopyBytes = 64 << 10;

}  // namespace

absl::StatusOr<std::unique_ptr<LinkProbe>> LinkProbe::Start(const Parts& parts,
                                                            Done done) {
  auto probe =
      std::unique_ptr<LinkProbe>(new LinkProbe(parts, std::move(done)));
  const int self = parts.transport->self().value();
  const std::vector<int> next = {(self + 1) % parts.num_nodes};
  const std::vector<int> last = {(self + parts.num_nodes - 1) %
                                 parts.num_nodes};
  std::vector<int> others;
  for (int node = 0; node < parts.num_nodes; ++node) {
    if (node != self) others.push_back(node);
  }
  RETURN_IF_ERROR(probe->Prepare(next, last, kSmallBytes));
  RETURN_IF_ERROR(probe->Prepare(others, others, kSmallBytes));
  RETURN_IF_ERROR(probe->Prepare(next, last, kLargeBytes));
  RETURN_IF_ERROR(probe->PostNext());
  return probe;
}

LinkProbe::LinkProbe(const Parts& parts, Done done)
    : parts_(parts),
      done_(std::move(done)),
      out_(kLargeBytes),
      in_(std::max(kLargeBytes, kSmallBytes * parts.num_nodes)) {}

absl::Status LinkProbe::Prepare(const std::vector<int>& to,
                                const std::vector<int>& from, size_t bytes) {
  ExchangeSpec spec;
  spec.job = parts_.job;
  spec.generation = parts_.generation;
  spec.phase = parts_.phase + static_cast<uint32_t>(tries_.size());
  std::span<std::byte> room = in_;
  for (const int node : to) {
    spec.sends.push_back({NodeRank(node), std::span(out_).first(bytes)});
  }
  for (const int node : from) {
    spec.receives.push_back({NodeRank(node), room.first(bytes)});
    room = room.subspan(bytes);
  }
  Try next;
  next.seconds = std::numeric_limits<double>::infinity();
  ASSIGN_OR_RETURN(next.exchange, parts_.transport->Prepare(spec, this));
  tries_.push_back(std::move(next));
  return absl::OkStatus();
}

absl::Status LinkProbe::PostNext() {
  step_ = step_.next();
  posted_ = parts_.clock->Now();
  return tries_[current_].exchange->Post(step_);
}

void LinkProbe::OnExchangeDone(Exchange*, Step, const absl::Status& why) {
  absl::Status status = why;
  if (status.ok()) {
    Try& current = tries_[current_];
    if (step_.value() > 1) {
      current.seconds =
          std::min(current.seconds,
                   absl::ToDoubleSeconds(parts_.clock->Now() - posted_));
    }
    const bool is_large = current_ + 1 == tries_.size();
    if (step_.value() == (is_large ? kLargeRepeats : kRepeats)) {
      ++current_;
      step_ = Step();
    }
    if (current_ < tries_.size()) status = PostNext();
  }
  if (status.ok() && current_ < tries_.size()) return;
  Done done = std::move(done_);  // outlives this
  if (!status.ok()) return std::move(done)(status);
  std::move(done)(Result());
}

double LinkProbe::CopySeconds() {
  double quickest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRepeats; ++i) {
    const absl::Time start = parts_.clock->Now();
    std::memcpy(in_.data(), out_.data(), kCopyBytes);
    quickest =
        std::min(quickest, absl::ToDoubleSeconds(parts_.clock->Now() - start));
  }
  return quickest;
}

LinkCost LinkProbe::Result() {
  const double one = tries_[0].seconds;
  const double all = tries_[1].seconds;
  const double large = tries_[2].seconds;
  LinkCost cost;
  if (parts_.num_nodes > 2) {
    cost.per_message =
        std::clamp((all - one) / (parts_.num_nodes - 2), 0.0, one);
  }
  cost.latency = one - cost.per_message;
  cost.per_byte = std::max(large - one, 0.0) / static_cast<double>(kLargeBytes);
  cost.per_copied_byte = CopySeconds() / static_cast<double>(kCopyBytes);
  return cost;
}

}  // namespace ballast::transport
