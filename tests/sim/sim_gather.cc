#include "tests/sim/sim_gather.h"

#include "proto/control_block.h"

namespace ballast::sim {

void SimGather::Begin(bool is_backward, int64_t version) {
  for (const Wanted& wanted : wanted_) {
    view_->StoreWanted(wanted.unit, ++requests_[wanted.unit]);
  }
  wanted_.clear();
  is_backward_ = is_backward;
  version_ = version;
  next_ = 0;
  num_used_ = 0;
}

bool SimGather::IsHeld(int unit) const {
  const uint64_t word = view_->held(unit);
  return proto::IsHeldFor(word, requests_[unit]) &&
         proto::StateOfHeld(word) == proto::HeldState::kHeld &&
         proto::VersionOfHeld(word) == (units_.is_frozen(unit) ? 0 : version_);
}

bool SimGather::Look(std::vector<int>* held) {
  bool is_news = false;
  while (next_ < units_.size() && static_cast<int>(wanted_.size()) < window_) {
    const int unit = is_backward_ ? units_.size() - 1 - next_ : next_;
    ++next_;
    wanted_.push_back({unit, false});
    view_->StoreWanted(unit, ++requests_[unit]);
    is_news = true;
  }
  for (Wanted& wanted : wanted_) {
    const uint64_t word = view_->held(wanted.unit);
    if (proto::IsHeldFor(word, requests_[wanted.unit]) &&
        proto::StateOfHeld(word) == proto::HeldState::kRefused) {
      is_refused_ = true;
    }
    if (wanted.is_held || !IsHeld(wanted.unit)) continue;
    wanted.is_held = true;
    held->push_back(wanted.unit);
  }
  return is_news;
}

void SimGather::GiveBack(int unit) {
  std::erase_if(wanted_, [&](const Wanted& w) { return w.unit == unit; });
  view_->StoreWanted(unit, ++requests_[unit]);
  ++num_used_;
}

}  // namespace ballast::sim
