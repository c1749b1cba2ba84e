// A worker process in virtual time. It speaks to its daemon as a real one
// does: calls (attach, begin, close), doorbells, and the control block in
// shared memory, through the client's own view of it.
//
// Threading: events of its own SimProcess.
#ifndef TESTS_SIM_SIM_WORKER_H_
#define TESTS_SIM_SIM_WORKER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/worker/control_view.h"
#include "proto/control_block.h"
#include "proto/handle_socket.h"
#include "server/base/random.h"
#include "server/base/segment.h"
#include "server/base/sim_executor.h"
#include "server/ipc/process_state.h"
#include "server/layout/gather_units.h"
#include "server/layout/layout.h"
#include "server/session/job_spec.h"
#include "server/session/session.h"
#include "tests/sim/scenario.h"
#include "tests/sim/sim_gather.h"
#include "tests/sim/sim_world.h"

namespace ballast::sim {

// The daemon's end of the connection of a worker that an earlier daemon left;
// `note` is what it left of it (its key, too).
struct SimWorkerNote {
  WorkerId id;
  std::string key() const;
  std::string ToText() const;
  static SimWorkerNote FromText(const std::string& text);
};
std::unique_ptr<session::WorkerLink> AdoptSimLink(SimWorld* world,
                                                  const SimWorkerNote& note);

class SimWorker {
 public:
  // Segments that the daemon sent; kept by the link too, as a socket would.
  struct Memory {
    std::map<proto::SegmentKind, base::Segment> segments;
    // Of its process; of a worker that the daemon adopted it is not known.
    ipc::ProcessState process = ipc::ProcessState::kUnknown;
  };

  SimWorker(SimWorld* world, WorkerId id, uint64_t seed);

  void Start();

  WorkerId id() const { return id_; }
  base::SimProcess& process() { return process_; }
  // SIGSTOP; the longest counts. Then SIGCONT, unless a longer one waits.
  void StopUntil(absl::Time end);
  void GoOnIfDue();
  bool is_done() const { return is_done_; }
  // How it ended: OK if it closed the job after its last step.
  const absl::Status& outcome() const { return outcome_; }
  int64_t step() const { return step_; }
  int aborts() const { return aborts_; }

  // A daemon took its call; the answer is not here yet.
  bool is_answer_due() const { return call_ != Call::kNone && *is_call_taken_; }
  // The daemon that took it has died, the next one goes on: what was not
  // answered is asked again, as the client does.
  void OnDaemonBack();
  // From its link.
  void OnWake() { Poll(); }
  void OnLinkClosed(const absl::Status& why);

 private:
  enum class Call { kNone, kAttach, kBegin, kClose };
  static std::string_view Name(Call call);  // as scenarios say it

  // The session was lost before it had begun: opens it anew, as the client does
  // (client/worker/opening.h). Ends it if that would be of no use.
  void Reopen(const absl::Status& why);
  // The connection that the call or its answer was on has broken: it is asked
  // again on another one, as the client does (client/worker/connection.h).
  void AskAgain();
  bool LosesReply(Call call);
  // `fn` runs on the daemon, whose answer is still to come.
  void Ask(Call call, absl::AnyInvocable<void(daemon::Node&)> fn);
  void CallBegin();
  void CallClose();
  void OnClosed();
  session::AttachRequest MakeRequest() const;
  void OnAttached(int attempt, absl::StatusOr<session::AttachReply> reply,
                  std::shared_ptr<layout::Layout> layout,
                  std::shared_ptr<layout::GatherUnits> units);
  void WriteInitialValues();
  void OnBegun(int attempt, absl::StatusOr<session::BeginReply> reply);
  void Poll();
  void PollResident();
  // Where weights are not resident.
  void PollGathered();
  bool LookForUnits(std::vector<int>* held);
  void UseForward(int unit);
  void UseBackward(int unit);
  void GiveBack(int unit);
  void ReadUnit(int unit);
  void RingDoorbell();
  bool HandleFailure();
  void Advance();
  void CheckRank0Cursor(const std::string& cursor, int64_t step);
  bool IsPublished(int64_t version) const;
  void ReadPublished();
  void ReadBucket(int bucket, int64_t version);
  void ReportVersion();
  void BeginStep();
  void StoreInput();
  void SchedulePushes();
  void PushOne(uint64_t word, int bucket);
  void WriteGradients(int bucket);
  void Crash();
  void Poison(std::byte* element, kernels::DType dtype);
  void Close();
  void End(const absl::Status& outcome);

  SimWorld* const world_;
  const WorkerId id_;
  const std::string key_;
  const int node_;
  base::SimProcess process_;
  base::SeededRandom random_;
  std::shared_ptr<Memory> memory_;
  std::shared_ptr<layout::Layout> layout_;
  std::shared_ptr<layout::GatherUnits> units_;  // null: weights are resident
  std::optional<worker::ControlView> view_;
  std::optional<SimGather> gather_;
  int64_t gathering_version_ = -1;  // of the forward pass
  std::vector<std::byte> seen_;     // the weights, as they were gathered
  bool has_asked_to_close_ = false;
  int attempt_ = 0;  // to open: what belongs to others is ignored
  absl::Time opened_ = absl::InfiniteFuture();  // the first one
  Call call_ = Call::kNone;                     // not yet answered
  std::shared_ptr<bool> is_call_taken_;         // by a daemon
  int num_asked_ = 0;
  uint32_t failure_seen_ = 0;
  int64_t step_ = 0;
  uint64_t word_ = 0;  // of step_, in its generation
  int64_t reported_version_ = -1;
  bool has_begun_step_ = false;
  std::vector<bool> is_scheduled_;     // by bucket, for step_
  std::vector<int64_t> read_version_;  // by bucket
  int num_pushed_ = 0;
  const Fault* crash_ = nullptr;
  int crash_after_ = 0;  // pushes of this step
  std::optional<double> wrong_lr_;
  const Fault* bad_value_ = nullptr;  // NaN or infinity
  int aborts_ = 0;
  absl::Time stopped_until_ = absl::InfinitePast();
  bool is_done_ = false;
  absl::Status outcome_;
};

}  // namespace ballast::sim

#endif  // TESTS_SIM_SIM_WORKER_H_
