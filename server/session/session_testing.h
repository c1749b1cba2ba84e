// A worker in the same process, for tests: maps what it is sent, as a real one
// would, and may write anything.
#ifndef SERVER_SESSION_SESSION_TESTING_H_
#define SERVER_SESSION_SESSION_TESTING_H_

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "proto/control_block.h"
#include "proto/handle_socket.h"
#include "server/base/ids.h"
#include "server/base/segment.h"
#include "server/base/vault.h"
#include "server/device/device.h"
#include "server/session/job_spec.h"
#include "server/session/session.h"
#include "server/session/sessions.h"

namespace ballast::session {

// What the worker's process holds; outlives its link.
struct FakeProcess {
  std::map<proto::SegmentKind, base::Segment> segments;
  int wakes = 0;
  ipc::ProcessState state = ipc::ProcessState::kRunning;
  int looks = 0;  // at its state
  absl::Status closed = absl::OkStatus();
  bool is_closed = false;

  std::byte* control() const {
    return segments.at(proto::SegmentKind::kControlBlock).bytes().data();
  }
  template <typename T>
  T* At(uint64_t offset) const {
    return reinterpret_cast<T*>(control() + offset);
  }
  const proto::ControlBlockHeader& header() const {
    return *At<proto::ControlBlockHeader>(0);
  }
  proto::DaemonArea* daemon() const {
    return At<proto::DaemonArea>(header().daemon_area_offset);
  }
  proto::WorkerArea* worker() const {
    return At<proto::WorkerArea>(header().worker_area_offset);
  }
  proto::Word* pushed(int b) const {
    return At<proto::Word>(header().pushed_offset) + b;
  }
  proto::Word* consumed(int b) const {
    return At<proto::Word>(header().consumed_offset) + b;
  }
  proto::Word* published(int b) const {
    return At<proto::Word>(header().published_offset) + b;
  }
  proto::Word* wanted(int u) const {
    return At<proto::Word>(header().wanted_offset) + u;
  }
  proto::Word* held(int u) const {
    return At<proto::Word>(header().held_offset) + u;
  }
  proto::GroupValues* groups() const {
    return At<proto::GroupValues>(header().groups_offset);
  }
  void StoreInput(uint64_t word, double lr, const std::string& cursor) {
    for (uint32_t i = 0; i < header().num_groups; ++i) {
      groups()[i] = proto::GroupValues{};
      groups()[i].lr = lr;
    }
    std::memcpy(At<char>(header().cursor_offset), cursor.data(), cursor.size());
    worker()->cursor_bytes = static_cast<uint32_t>(cursor.size());
    worker()->step_input.store(word);
  }
};

class FakeLink final : public WorkerLink {
 public:
  FakeLink(FakeProcess* process, int64_t pid, uint32_t uid = 1000)
      : process_(process),
        identity_{pid, uid, Incarnation(static_cast<uint64_t>(pid) << 8)} {}

  const WorkerIdentity& identity() const override { return identity_; }
  absl::Status SendSegment(proto::SegmentKind kind,
                           const device::SharedBuffer& buffer) override {
    const base::Access access = kind == proto::SegmentKind::kWeights
                                    ? base::Access::kReadOnly
                                    : base::Access::kReadWrite;
    absl::StatusOr<base::UniqueFd> fd = buffer.Export(access);
    if (!fd.ok()) return fd.status();
    auto segment =
        base::Segment::Map(*std::move(fd), buffer.size_bytes(), access);
    if (!segment.ok()) return segment.status();
    process_->segments[kind] = *std::move(segment);
    return absl::OkStatus();
  }
  void OnWake() override { ++process_->wakes; }
  absl::Status Keep(base::Vault* vault, std::string_view name) const override {
    const int fd =
        process_->segments.at(proto::SegmentKind::kControlBlock).fd();
    return vault->Put(name, absl::StrCat(identity_.pid), std::span(&fd, 1));
  }
  ipc::ProcessState process_state() const override {
    ++process_->looks;
    return process_->state;
  }
  void Close(const absl::Status& why) override {
    process_->is_closed = true;
    process_->closed = why;
  }

 private:
  FakeProcess* const process_;
  const WorkerIdentity identity_;
};

// Keeps what it hears.
struct FakeObserver : JobObserver {
  std::string WaitingFor() const override { return waiting_for; }
  std::string waiting_for;
  struct Push {
    int rank;
    int bucket;
    bool operator==(const Push&) const = default;
  };
  std::vector<Push> pushes;
  std::vector<std::pair<int, std::string>> inputs;  // rank, cursor
  std::vector<absl::Status> refusals;
  std::vector<int> lost;
  std::vector<int> closed;
  int all_ready = 0;
  int all_closed = 0;

  void OnAllReady() override { ++all_ready; }
  void OnPushed(LocalRank rank, BucketId bucket) override {
    pushes.push_back({rank.value(), bucket.value()});
  }
  void OnStepInput(LocalRank rank, std::span<const proto::GroupValues>,
                   std::string cursor) override {
    inputs.emplace_back(rank.value(), std::move(cursor));
  }
  void OnStepInputRefused(LocalRank, const absl::Status& why) override {
    refusals.push_back(why);
  }
  struct Want {
    int rank;
    int unit;
    uint64_t request;
    bool operator==(const Want&) const = default;
  };
  std::vector<Want> wants;
  void OnWanted(LocalRank rank, int unit, uint64_t request) override {
    wants.push_back({rank.value(), unit, request});
  }
  void OnWorkerLost(LocalRank rank, const absl::Status&) override {
    lost.push_back(rank.value());
  }
  void OnWorkerClosed(LocalRank rank) override {
    closed.push_back(rank.value());
  }
  void OnAllClosed() override { ++all_closed; }
};

class FakeHost final : public JobHost {
 public:
  JobMemory MemoryOf(const AttachRequest&) override { return memory; }
  void ReleaseMemory(const std::string& job) override {
    released.push_back(job);
  }
  absl::StatusOr<JobObserver*> StartJob(LocalJob* job) override {
    if (!refusal.ok()) return refusal;
    return &observers[job->spec().name];
  }
  void EndJob(LocalJob* job, const absl::Status& why,
              absl::AnyInvocable<void() &&> done) override {
    ended[job->spec().name] = why;
    std::move(done)();
  }

  void FindStored(const AttachRequest&, uint32_t, StoredDone done) override {
    std::move(done)(stored);
  }
  void SaveLast(LocalJob* job,
                absl::AnyInvocable<void(absl::Status) &&> done) override {
    saving[job->spec().name] = std::move(done);
  }
  void SaveHeld(
      LocalJob* job,
      absl::AnyInvocable<void(absl::StatusOr<std::string>) &&> done) override {
    if (saves_held) {
      saving_held[job->spec().name] = std::move(done);
    } else {
      std::move(done)("");
    }
  }
  uint64_t held_bytes() const override { return held; }

  uint64_t WindowBytes(const JobSpec&, const layout::Layout&,
                       NodeRank) const override {
    return windows;
  }

  uint64_t windows = 0;
  JobMemory memory;
  std::vector<std::string> released;
  absl::Status refusal = absl::OkStatus();
  std::optional<StoredJob> stored;
  std::map<std::string, absl::AnyInvocable<void(absl::Status) &&>> saving;
  bool saves_held = false;
  std::map<std::string,
           absl::AnyInvocable<void(absl::StatusOr<std::string>) &&>>
      saving_held;
  uint64_t held = 0;
  std::map<std::string, FakeObserver> observers;
  std::map<std::string, absl::Status> ended;
};

// A job of two tensors: three buckets of one cell each.
inline AttachRequest SmallRequest(const std::string& job, int rank,
                                  int world_size) {
  AttachRequest request;
  request.job.name = job;
  request.job.tensors = {{.name = "wte", .shape = {2, 2048}},
                         {.name = "bias", .shape = {7}}};
  request.job.groups = {kernels::HyperParameters{}};
  request.job.bucket_bytes = 2048 * 4;
  request.placement = {Rank(rank), world_size, LocalRank(rank), world_size,
                       NodeRank(0)};
  request.has_initial_values = true;
  return request;
}

}  // namespace ballast::session

#endif  // SERVER_SESSION_SESSION_TESTING_H_
