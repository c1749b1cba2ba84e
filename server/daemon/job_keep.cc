#include "server/daemon/job_keep.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/base/failpoint.h"
#include "server/base/status_macros.h"

namespace ballast::daemon {
namespace {

// session::WorkerName.
std::optional<int> WorkerOf(absl::string_view name) {
  int rank = 0;
  if (!absl::ConsumePrefix(&name, "worker-") ||
      !absl::SimpleAtoi(name, &rank)) {
    return std::nullopt;
  }
  return rank;
}

}  // namespace

JobVault::JobVault(base::Vault* vault, std::string_view job)
    : vault_(vault), prefix_(absl::StrCat(std::string(job), "/")) {}

absl::Status JobVault::Put(std::string_view name, std::string_view note,
                           std::span<const int> fds) {
  RETURN_IF_ERROR(vault_->Put(Full(name), note, fds));
  names_.emplace(name);
  return absl::OkStatus();
}

absl::Status JobVault::CheckHeld(std::string_view name) const {
  return vault_->CheckHeld(Full(name));
}

absl::Status JobVault::CheckAllHeld() const {
  for (const std::string& name : names_) {
    const absl::Status held = CheckHeld(name);
    if (held.ok()) continue;
    return absl::Status(
        held.code(),
        absl::StrCat("of its \"", name, "\": ", std::string(held.message())));
  }
  return absl::OkStatus();
}

void JobVault::Remove(std::string_view name) {
  const auto it = names_.find(name);
  if (it == names_.end()) return;
  vault_->Remove(Full(name));
  names_.erase(it);
}

// The record first: a job without one is nothing.
void JobVault::RemoveAll() {
  Remove(kRecordName);
  while (!names_.empty()) {
    BALLAST_FAILPOINT("daemon.forgetting");
    Remove(std::string(*names_.begin()));
  }
}

absl::btree_map<std::string, std::vector<base::Kept>> ByJob(
    std::vector<base::Kept> found) {
  absl::btree_map<std::string, std::vector<base::Kept>> jobs;
  for (base::Kept& item : found) {
    const size_t slash = item.name.find('/');
    if (slash == std::string::npos) continue;
    const std::string job = item.name.substr(0, slash);
    item.name.erase(0, slash + 1);
    jobs[job].push_back(std::move(item));
  }
  return jobs;
}

JobKeep::JobKeep(device::Device* device, base::Vault* vault,
                 std::string_view job)
    : vault_(vault, job),
      device_(std::make_unique<device::KeptDevice>(device, &vault_)) {}

absl::StatusOr<std::unique_ptr<JobKeep>> JobKeep::Open(
    device::Device* device, base::Vault* vault, std::string_view job,
    std::vector<base::Kept> found, absl::btree_map<int, base::Kept>* workers) {
  auto keep = std::make_unique<JobKeep>(device, vault, job);
  keep->is_taken_over_ = true;
  device::KeptDevice::Found memory;
  base::UniqueFd record;
  for (base::Kept& item : found) {
    keep->vault_.Know(item.name);
    if (const auto rank = WorkerOf(item.name); rank.has_value()) {
      (*workers)[*rank] = std::move(item);
    } else if (item.name == kRecordName) {
      record = std::move(item.fds[0]);
    } else {
      memory[item.name] = std::move(item.fds[0]);
    }
  }
  struct stat info {};
  if (!record || fstat(record.get(), &info) < 0 || info.st_size <= 0) {
    return absl::DataLossError("no record of the job was kept");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<device::SharedBuffer> buffer,
                   device->AdoptShared(std::move(record), info.st_size,
                                       info.st_size, kRecordName));
  ASSIGN_OR_RETURN(keep->record_, JobRecord::Open(std::move(buffer)));
  keep->device_ = std::make_unique<device::KeptDevice>(device, &keep->vault_,
                                                       std::move(memory));
  return keep;
}

std::string JobKeep::OnRefusal(const absl::Status& why) {
  if (!why.ok()) {
    if (std::exchange(is_refusal_told_, true)) return "";
    return absl::StrCat("not kept: reason=\"", std::string(why.message()),
                        "\": until the keeper has room for it, a restart of "
                        "this daemon ends the job; raise the keeper's limit of "
                        "descriptors, or close other jobs");
  }
  if (!is_refusal_told_ || !vault_.CheckAllHeld().ok()) return "";
  is_refusal_told_ = false;
  return "kept at last";
}

absl::Status JobKeep::MakeRecord(const v1::KeptJob& job) {
  ASSIGN_OR_RETURN(record_, JobRecord::Create(device_.get(), job));
  return absl::OkStatus();
}

}  // namespace ballast::daemon
