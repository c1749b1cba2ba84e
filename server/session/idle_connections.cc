#include "server/session/idle_connections.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast::session {

IdleConnections::IdleConnections(const Options& options,
                                 base::Executor* executor, Evict evict)
    : options_(options), executor_(executor), evict_(std::move(evict)) {}

IdleConnections::~IdleConnections() {
  for (const auto& [key, entry] : by_key_) executor_->Cancel(entry.timer);
}

void IdleConnections::Add(const std::string& key, uint32_t uid) {
  const uint64_t number = ++num_added_;
  const base::TimerId timer =
      executor_->PostAfter(options_.timeout, [this, key] { OnTimeout(key); });
  by_key_[key] = Entry{uid, number, timer};
  by_uid_[uid][number] = key;
  if (static_cast<int>(by_uid_[uid].size()) > options_.max_per_uid) {
    EvictOldest(uid, absl::ResourceExhaustedError(absl::StrCat(
                         "uid ", uid, " has more than ", options_.max_per_uid,
                         " connections that are attached to no job "
                         "(limits.max_idle_connections_per_uid)")));
  } else if (size() > options_.max_total) {
    EvictOldest(GreediestUid(), absl::ResourceExhaustedError(absl::StrCat(
                                    "more than ", options_.max_total,
                                    " connections are attached to no job "
                                    "(limits.max_idle_connections)")));
  }
}

void IdleConnections::Remove(const std::string& key) {
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return;
  const Entry entry = it->second;
  by_key_.erase(it);
  executor_->Cancel(entry.timer);
  Queue& queue = by_uid_[entry.uid];
  queue.erase(entry.number);
  if (queue.empty()) by_uid_.erase(entry.uid);
}

void IdleConnections::OnTimeout(const std::string& key) {
  const std::string victim = key;  // the timer's own goes with it
  Remove(victim);
  evict_(victim,
         absl::DeadlineExceededError(absl::StrCat(
             "attached to no job for ", absl::FormatDuration(options_.timeout),
             " (limits.idle_connection_timeout)")));
}

void IdleConnections::EvictOldest(uint32_t uid, const absl::Status& why) {
  const std::string victim = by_uid_[uid].begin()->second;
  Remove(victim);
  evict_(victim, why);
}

uint32_t IdleConnections::GreediestUid() const {
  // Of equal ones the one that came first: never the newest.
  const auto rank = [](const Queue& queue) {
    return std::pair(queue.size(), UINT64_MAX - queue.begin()->first);
  };
  return std::max_element(by_uid_.begin(), by_uid_.end(),
                          [&](const auto& a, const auto& b) {
                            return rank(a.second) < rank(b.second);
                          })
      ->first;
}

}  // namespace ballast::session
