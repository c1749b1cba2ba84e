// Neighbours of an engine that do nothing but remember, in order, what they
// were asked: `log` is one line per call, of all of them.
#ifndef SERVER_ENGINE_FAKE_NEIGHBOURS_H_
#define SERVER_ENGINE_FAKE_NEIGHBOURS_H_

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/clock.h"
#include "server/collective/collective.h"
#include "server/engine/ports.h"
#include "server/optimizer/optimizer.h"

namespace ballast::engine {

using CallLog = std::vector<std::string>;

class ManualClock final : public base::Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch();
};

class FakeWorkers final : public WorkerPort {
 public:
  explicit FakeWorkers(CallLog* log) : log_(log) {}
  void Open(Generation generation, Step step) override {
    log_->push_back(
        absl::StrCat("open ", generation.value(), "/", step.value()));
  }
  void Consumed(BucketId bucket, Generation, Step step) override {
    log_->push_back(
        absl::StrCat("consumed ", bucket.value(), "@", step.value()));
  }
  void Published(BucketId bucket, Generation, Step step) override {
    log_->push_back(
        absl::StrCat("published ", bucket.value(), "@", step.value()));
  }
  void Committed(const StepSummary& summary,
                 std::string_view rank0_cursor) override {
    log_->push_back(absl::StrCat("committed ", summary.step.value()));
    rank0_cursors.emplace_back(rank0_cursor);
  }
  void Finished(const StepSummary& summary) override {
    log_->push_back(absl::StrCat("finished ", summary.step.value()));
  }
  void Aborted(Step step, Generation next, const absl::Status& why) override {
    log_->push_back(absl::StrCat("aborted ", step.value(), " next ",
                                 next.value(), ": ", why.message()));
  }

  std::vector<std::string> rank0_cursors;

 private:
  CallLog* const log_;
};

class FakeMembers final : public MemberPort {
 public:
  explicit FakeMembers(CallLog* log) : log_(log) {}
  void CastVote(const v1::Vote& vote) override {
    log_->push_back(absl::StrCat("vote ", vote.step()));
    votes.push_back(vote);
  }
  void Leave(const absl::Status& why) override {
    log_->push_back(absl::StrCat("leave: ", why.message()));
  }

  std::vector<v1::Vote> votes;

 private:
  CallLog* const log_;
};

class FakeLoads final : public LoadPort {
 public:
  explicit FakeLoads(CallLog* log) : log_(log) {}
  void StartLoad(Step step, bool resets_state) override {
    log_->push_back(
        absl::StrCat("load ", step.value(), resets_state ? " anew" : ""));
  }

 private:
  CallLog* const log_;
};

class FakeCollective final : public collective::Collective {
 public:
  explicit FakeCollective(CallLog* log) : log_(log) {}
  void StartReduce(BucketId bucket, Step step) override {
    log_->push_back(absl::StrCat("reduce ", bucket.value(), "@", step.value()));
  }
  void StartPublish(BucketId bucket, Step step) override {
    log_->push_back(
        absl::StrCat("publish ", bucket.value(), "@", step.value()));
  }
  void StartBroadcast(NodeRank, Step) override { log_->push_back("broadcast"); }
  std::string WaitingFor() const override { return ""; }
  void StartComparison() override { log_->push_back("compare"); }
  void Cancel(absl::AnyInvocable<void() &&> done) override {
    std::move(done)();
  }
  collective::ByteCounts byte_counts() const override { return bytes; }
  collective::PublishedState published() const override { return state; }
  collective::PathErrors Errors(layout::Path path, Step step) const override {
    collective::PathErrors errors;
    if (!is_metered) return errors;
    // What comes back says whom it was asked of.
    errors.tensors.emplace_back().sampled =
        100 * static_cast<size_t>(path) + step.value();
    return errors;
  }

  collective::ExchangeTimes times() const override { return exchange_times; }
  absl::Status Revise(std::span<const layout::CodecChange> changes) override {
    for (const layout::CodecChange& change : changes) {
      log_->push_back(absl::StrCat("codec ", static_cast<int>(change.codec),
                                   " for ", change.tensor.value()));
      ++wider[static_cast<size_t>(change.path)];
    }
    if (forgets_residual && !changes.empty()) residual_norm.reset();
    return revise_status;
  }
  void OnCommitted(int64_t optimizer_step) override {
    optimizer_steps.push_back(optimizer_step);
  }
  std::optional<double> ResidualNorm() const override { return residual_norm; }
  int num_wider(layout::Path path) const override {
    return wider[static_cast<size_t>(path)];
  }

  collective::ByteCounts bytes;
  collective::ExchangeTimes exchange_times;
  absl::Status revise_status;
  std::optional<double> residual_norm;
  bool forgets_residual = false;  // in Revise
  std::vector<int64_t> optimizer_steps;
  std::array<int, layout::kNumPaths> wider{};
  collective::PublishedState state;
  bool is_metered = false;

 private:
  CallLog* const log_;
};

class FakeOptimizer final : public optimizer::Optimizer {
 public:
  explicit FakeOptimizer(CallLog* log) : log_(log) {}
  absl::Status BeginStep(
      Generation, Step step,
      std::span<const kernels::StepScalars> scalars) override {
    log_->push_back(absl::StrCat("begin ", step.value(), " with ",
                                 scalars.size(), " scalars"));
    return begin_status;
  }
  void StartUpdate(BucketId bucket) override {
    log_->push_back(absl::StrCat("update ", bucket.value()));
  }
  void InitializeFromWeights(optimizer::Moments) override {}
  void KeepAll() override {}

  absl::Status begin_status;

 private:
  CallLog* const log_;
};

class FakeState final : public optimizer::ShardState {
 public:
  explicit FakeState(CallLog* log) : log_(log) {}
  kernels::OptimizerKind kind() const override {
    return kernels::OptimizerKind::kSgd;
  }
  int num_moments() const override { return 0; }
  std::span<float> master() override { return {}; }
  std::span<float> moment(int) override { return {}; }
  std::span<float> gradient() override { return {}; }
  uint64_t size_bytes() const override { return 0; }
  const optimizer::Scalars& scalars() const override { return scalars_; }
  absl::Status Commit(optimizer::Scalars scalars) override {
    log_->push_back(absl::StrCat("record ", scalars.step.value()));
    scalars_ = std::move(scalars);
    return absl::OkStatus();
  }

 private:
  CallLog* const log_;
  optimizer::Scalars scalars_;
};

}  // namespace ballast::engine

#endif  // SERVER_ENGINE_FAKE_NEIGHBOURS_H_
