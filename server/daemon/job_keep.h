// What outlives the daemon of one job: its part of the vault, the device that
// puts the job's memory there, and the record.
//
// Threading: control thread only. Borrows device and vault.
#ifndef SERVER_DAEMON_JOB_KEEP_H_
#define SERVER_DAEMON_JOB_KEEP_H_

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/vault.h"
#include "server/daemon/job_record.h"
#include "server/device/device.h"
#include "server/device/kept_device.h"

namespace ballast::daemon {

// The names of one job in a vault of many: "JOB/NAME".
class JobVault final : public base::Vault {
 public:
  JobVault(base::Vault* vault, std::string_view job);

  absl::Status Put(std::string_view name, std::string_view note,
                   std::span<const int> fds) override;
  absl::Status CheckHeld(std::string_view name) const override;
  // Names what is not, and why.
  absl::Status CheckAllHeld() const;
  void Remove(std::string_view name) override;
  // It is there already, from an earlier life.
  void Know(std::string_view name) { names_.emplace(name); }
  void RemoveAll();

 private:
  std::string Full(std::string_view name) const {
    return prefix_ + std::string(name);
  }

  base::Vault* const vault_;
  const std::string prefix_;
  std::set<std::string, std::less<>> names_;
};

// Everything found in a vault, by job; names without a job are left out.
absl::btree_map<std::string, std::vector<base::Kept>> ByJob(
    std::vector<base::Kept> found);

class JobKeep {
 public:
  // Of a new job.
  JobKeep(device::Device* device, base::Vault* vault, std::string_view job);

  // Of one that an earlier daemon left, its workers taken out of `found` and
  // put into `workers` by local rank. DataLoss, Unavailable (JobRecord::Open).
  static absl::StatusOr<std::unique_ptr<JobKeep>> Open(
      device::Device* device, base::Vault* vault, std::string_view job,
      std::vector<base::Kept> found, absl::btree_map<int, base::Kept>* workers);

  JobVault* vault() { return &vault_; }
  device::KeptDevice* device() { return device_.get(); }
  JobRecord* record() { return record_.get(); }  // null before MakeRecord
  bool is_taken_over() const { return is_taken_over_; }
  absl::Status MakeRecord(const v1::KeptJob& job);
  // That the vault has refused a part of the job; OK: it has taken one at last.
  // A line for people where that is news.
  std::string OnRefusal(const absl::Status& why);

 private:
  JobVault vault_;
  std::unique_ptr<device::KeptDevice> device_;
  std::unique_ptr<JobRecord> record_;
  bool is_taken_over_ = false;
  bool is_refusal_told_ = false;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_JOB_KEEP_H_
