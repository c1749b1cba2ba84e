// What a job is and how far it has come, in memory that outlives the daemon:
// with it the next one knows what to do with the job's other buffers. Byte
// format, versions 1 to 4, native little-endian:
//
//   0      RecordHeader (job_record.cc)     magic is 0 until the job runs
//   4096   v1::KeptJob
//   ...    from a page boundary, since version 2: v1::StepNotes (two_slots.h)
//   ...    v1::KeptOutcome: the last commit or abort (likewise); in version 1
//          its v1::PeerFrame alone
//
// Version 3 is version 2 of a job whose weights are not resident: daemons that
// know 2 would not look for them. Version 4 is version 3 of one that went on
// from a stored state: daemons that know 3 would take what was stored of the
// weights for what an update has encoded.
//
// Threading: control thread only. Owns the buffer.
#ifndef SERVER_DAEMON_JOB_RECORD_H_
#define SERVER_DAEMON_JOB_RECORD_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/kept_job.pb.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"
#include "server/daemon/two_slots.h"
#include "server/device/device.h"
#include "server/membership/error_budget.h"
#include "server/membership/outcome_log.h"

namespace ballast::daemon {

inline constexpr char kRecordName[] = "record";  // of its buffer

class JobRecord final : public membership::OutcomeLog {
 public:
  static absl::StatusOr<std::unique_ptr<JobRecord>> Create(
      device::Device* device, const v1::KeptJob& job);
  // What an earlier daemon left, whatever its bytes are. DataLoss says what is
  // wrong with it; FailedPrecondition: another version's; Unavailable: the job
  // had not begun yet.
  static absl::StatusOr<std::unique_ptr<JobRecord>> Open(
      std::unique_ptr<device::SharedBuffer> buffer);

  const v1::KeptJob& job() const { return job_; }

  // Weights of the version before `first` are published, of a state after so
  // many updates: the job runs.
  void Begin(Step first, int64_t updates);
  // Those updates: of a stored state, or none.
  int64_t first_update() const;
  // All of the step's weights are published on this node.
  void SetFinished(Step step);
  Step finished() const;
  // Before SetFinished. False: too long to be kept.
  bool SetNotes(const v1::StepNotes& notes);
  const v1::StepNotes& notes() const { return notes_; }
  // The weights that the step loads are in place.
  void SetLoaded(Step step);
  Step loaded() const;
  void SetClosed(LocalRank rank);
  bool is_closed(LocalRank rank) const;

  // membership::OutcomeLog. ResourceExhausted: longer than a slot.
  absl::Status Record(const v1::PeerFrame& outcome,
                      const membership::BudgetState& budget) override;
  const std::optional<v1::PeerFrame>& last() const override { return last_; }
  // After the last outcome.
  const membership::BudgetState& budget() const { return budget_; }

 private:
  struct Header;
  JobRecord(std::unique_ptr<device::SharedBuffer> buffer, v1::KeptJob job,
            bool has_notes);

  Header* header() const;
  void ReadSlots();

  const std::unique_ptr<device::SharedBuffer> buffer_;
  const v1::KeptJob job_;
  TwoSlots outcomes_;
  std::optional<TwoSlots> notes_slots_;  // none in version 1
  std::optional<v1::PeerFrame> last_;
  membership::BudgetState budget_;
  v1::StepNotes notes_;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_JOB_RECORD_H_
