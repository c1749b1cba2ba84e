#include "server/base/sim_executor.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace ballast::base {
namespace {

constexpr uint64_t kWorldLane = 0;
constexpr uint64_t kFnvPrime = 0x100000001b3;

}  // namespace

SimExecutor::SimExecutor(uint64_t seed) : SimExecutor(seed, Options()) {}

SimExecutor::SimExecutor(uint64_t seed, const Options& options)
    : options_(options), random_(seed), now_(absl::UnixEpoch()) {
  lanes_[kWorldLane] = Lane{"world", now_};
}

void SimExecutor::Post(absl::AnyInvocable<void() &&> fn) {
  PostTo(kWorldLane, std::move(fn));
}

TimerId SimExecutor::PostAfter(absl::Duration delay,
                               absl::AnyInvocable<void() &&> fn) {
  return PostAfterTo(kWorldLane, delay, std::move(fn));
}

void SimExecutor::Cancel(TimerId timer) {
  const auto it = timer_times_.find(timer);
  if (it == timer_times_.end()) return;
  events_.erase(Key{it->second, timer});
  timer_times_.erase(it);
}

uint64_t SimExecutor::AddLane(std::string_view label) {
  const uint64_t lane = next_id_++;
  lanes_[lane] = Lane{std::string(label), now_};
  return lane;
}

void SimExecutor::RemoveLane(uint64_t lane) {
  // What the functions own may cancel timers while it goes: first all out.
  std::vector<Event> dropped;
  for (auto it = events_.begin(); it != events_.end();) {
    if (it->second.lane == lane) {
      timer_times_.erase(it->first.second);
      dropped.push_back(std::move(it->second));
      it = events_.erase(it);
    } else {
      ++it;
    }
  }
  lanes_.erase(lane);
}

absl::Duration SimExecutor::Jitter() {
  const int64_t bound = absl::ToInt64Nanoseconds(options_.max_jitter);
  return bound <= 0 ? absl::ZeroDuration()
                    : absl::Nanoseconds(random_.Below(bound + 1));
}

void SimExecutor::PostTo(uint64_t lane, absl::AnyInvocable<void() &&> fn) {
  Lane& owner = lanes_[lane];
  // Never before an earlier post of the same lane; ids break the tie.
  owner.last_post = std::max(owner.last_post, now_ + Jitter());
  events_.emplace(Key{owner.last_post, next_id_++}, Event{lane, std::move(fn)});
}

TimerId SimExecutor::PostAfterTo(uint64_t lane, absl::Duration delay,
                                 absl::AnyInvocable<void() &&> fn) {
  const TimerId id = next_id_++;
  const absl::Time time =
      now_ + std::max(delay, absl::ZeroDuration()) + Jitter();
  events_.emplace(Key{time, id}, Event{lane, std::move(fn)});
  timer_times_.emplace(id, time);
  return id;
}

absl::btree_map<SimExecutor::Key, SimExecutor::Event>::iterator
SimExecutor::NextRunnable() {
  auto it = events_.begin();
  while (it != events_.end() && lanes_[it->second.lane].is_paused) ++it;
  return it;
}

bool SimExecutor::Step() {
  const auto next = NextRunnable();
  if (next == events_.end()) return false;
  RunEvent(next);
  return true;
}

void SimExecutor::RunEvent(absl::btree_map<Key, Event>::iterator next) {
  // An event of a lane that was paused may be overdue: time never goes back.
  now_ = std::max(now_, next->first.first);
  Event event = std::move(next->second);
  timer_times_.erase(next->first.second);
  events_.erase(next);
  ++num_events_run_;
  running_lane_ = event.lane;
  Mix(lanes_[event.lane].label);
  std::move(event.fn)();
}

bool SimExecutor::RunUntilIdle(uint64_t max_events) {
  for (uint64_t i = 0; i < max_events; ++i) {
    if (!Step()) return true;
  }
  return NextRunnable() == events_.end();
}

void SimExecutor::RunUntil(absl::Time time) {
  while (true) {
    const auto next = NextRunnable();
    if (next == events_.end() || next->first.first > time) break;
    RunEvent(next);
  }
  now_ = std::max(now_, time);
}

std::string_view SimExecutor::running() const {
  const auto it = lanes_.find(running_lane_);
  return it == lanes_.end() ? std::string_view() : it->second.label;
}

void SimExecutor::Note(std::string_view text) { Mix(text); }

void SimExecutor::Mix(std::string_view label) {
  const auto mix = [this](uint8_t byte) {
    trace_hash_ = (trace_hash_ ^ byte) * kFnvPrime;
  };
  for (const char c : label) mix(static_cast<uint8_t>(c));
  uint64_t time = static_cast<uint64_t>(absl::ToUnixNanos(now_));
  for (int i = 0; i < 8; ++i, time >>= 8) mix(static_cast<uint8_t>(time));
}

SimProcess::SimProcess(SimExecutor* world, std::string_view label)
    : world_(world), lane_(world->AddLane(label)) {}

SimProcess::~SimProcess() { world_->RemoveLane(lane_); }

void SimProcess::Post(absl::AnyInvocable<void() &&> fn) {
  world_->PostTo(lane_, std::move(fn));
}

TimerId SimProcess::PostAfter(absl::Duration delay,
                              absl::AnyInvocable<void() &&> fn) {
  return world_->PostAfterTo(lane_, delay, std::move(fn));
}

void SimProcess::Cancel(TimerId timer) { world_->Cancel(timer); }

void SimProcess::Pause() { world_->lanes_[lane_].is_paused = true; }

void SimProcess::Resume() { world_->lanes_[lane_].is_paused = false; }

}  // namespace ballast::base
