#include "server/daemon/remnants.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast::daemon {

Remnants::Remnants(base::Executor* executor,
                   std::function<void(const std::string&)> log)
    : executor_(executor), log_(std::move(log)) {}

Remnants::~Remnants() {
  for (const auto& [owner, remnant] : remnants_) {
    executor_->Cancel(remnant.timer);
  }
}

void Remnants::Log(const std::string& line) const {
  if (log_ != nullptr) log_(line);
}

void Remnants::Keep(const Owner& owner,
                    std::shared_ptr<snapshot::HeldFiles> files,
                    absl::Duration hold) {
  Remnant& remnant = remnants_[owner];
  remnant.files = std::move(files);
  Arm(owner, &remnant, hold);
  Log(absl::StrCat("replicas stay job=", owner.job,
                   " bytes=", remnant.files->bytes_in_use(),
                   " for=", absl::FormatDuration(hold)));
}

void Remnants::Arm(const Owner& owner, Remnant* remnant, absl::Duration hold) {
  remnant->is_claimed = false;
  executor_->Cancel(remnant->timer);
  remnant->timer = executor_->PostAfter(hold, [this, owner] {
    remnants_[owner].timer = 0;
    Drop(owner, "they were held as long as they may be");
  });
}

std::shared_ptr<snapshot::HeldFiles> Remnants::Claim(const Owner& owner) {
  const auto it = remnants_.find(owner);
  if (it == remnants_.end() || it->second.is_claimed) return nullptr;
  executor_->Cancel(std::exchange(it->second.timer, 0));
  it->second.is_claimed = true;
  return it->second.files;
}

void Remnants::Release(const Owner& owner, absl::Duration hold) {
  const auto it = remnants_.find(owner);
  if (it == remnants_.end() || !it->second.is_claimed) return;
  Arm(owner, &it->second, hold);
}

void Remnants::Drop(const Owner& owner, const std::string& why) {
  const auto it = remnants_.find(owner);
  if (it == remnants_.end()) return;
  executor_->Cancel(it->second.timer);
  remnants_.erase(it);
  Log(absl::StrCat("replicas freed job=", owner.job, " reason=\"", why, "\""));
}

snapshot::HeldFiles* Remnants::Find(const std::string& job) const {
  for (const auto& [owner, remnant] : remnants_) {
    if (owner.job == job) return remnant.files.get();
  }
  return nullptr;
}

uint64_t Remnants::bytes() const {
  uint64_t total = 0;
  for (const auto& [owner, remnant] : remnants_) {
    total += remnant.files->bytes_in_use();
  }
  return total;
}

}  // namespace ballast::daemon
