// A job engine among neighbours that only write down what they are asked.
#ifndef SERVER_ENGINE_JOB_ENGINE_TESTING_H_
#define SERVER_ENGINE_JOB_ENGINE_TESTING_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/hyper_parameters.h"
#include "proto/control_block.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"
#include "server/collective/collective.h"
#include "server/engine/fake_neighbours.h"
#include "server/engine/job_engine.h"
#include "server/layout/layout.h"

namespace ballast::engine {

inline constexpr int kRanks = 2;

inline layout::Layout MakeLayout(int num_buckets) {
  std::vector<layout::TensorSpec> tensors = {
      {.name = "frozen", .shape = {3}, .trainable = false}};
  if (num_buckets > 0) {
    tensors.push_back(
        {.name = "w", .shape = {num_buckets * layout::kCellElements}});
  }
  layout::Options options;
  options.bucket_bytes = layout::kCellElements * 4;
  auto layout = layout::Layout::Create(
      std::move(tensors), {.num_nodes = 2, .local_world_size = kRanks}, 1,
      options);
  EXPECT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->buckets().size(), num_buckets);
  return *std::move(layout);
}

class JobEngineTest : public ::testing::Test {
 protected:
  void Make(int num_buckets, int64_t step = 1) {
    num_buckets_ = num_buckets;
    layout_ = std::make_unique<layout::Layout>(MakeLayout(num_buckets));
    log_.clear();
    members_.votes.clear();
    engine_ = JobEngine::Create({.layout = layout_.get(),
                                 .node = NodeRank(1),
                                 .clock = &clock_,
                                 .state = &state_,
                                 .optimizer = &optimizer_,
                                 .workers = &workers_,
                                 .members = &members_,
                                 .loads = &loads_});
    engine_->Start(Generation(1), Step(step), &collective_);
  }

  void Push(int rank, int bucket) {
    engine_->OnPushed(LocalRank(rank), BucketId(bucket));
  }
  void PushAll() {
    for (int l = 0; l < kRanks; ++l) {
      for (int b = 0; b < num_buckets_; ++b) Push(l, b);
    }
  }
  void Input(int rank, double lr = 0.5) {
    const proto::GroupValues values[] = {{.lr = lr,
                                          .beta1 = 0,
                                          .beta2 = 0,
                                          .eps = 0,
                                          .weight_decay = 0,
                                          .momentum = 0,
                                          .dampening = 0,
                                          .nesterov = 0,
                                          .lr_decay = 0,
                                          .initial_accumulator_value = 0,
                                          .max_norm = 0,
                                          .load = 0}};
    engine_->OnStepInput(LocalRank(rank), values, absl::StrCat("cursor", rank));
  }
  void Reduced(int bucket, double norm2 = 1, bool finite = true) {
    collective::Reduced reduced;
    reduced.norm2.Add(norm2);
    reduced.finite = finite;
    engine_->OnReduced(BucketId(bucket), reduced);
  }
  void Updated(int bucket) { engine_->OnUpdated(BucketId(bucket)); }
  void Published(int bucket) { engine_->OnPublished(BucketId(bucket)); }

  static v1::Commit CommitOf(int64_t step, bool skipped = false) {
    v1::Commit commit;
    commit.set_step(step);
    commit.set_skipped(skipped);
    commit.set_grad_norm(2);
    commit.set_clip_factor(0.5);
    commit.set_optimizer_step(step);
    commit.add_groups()->set_lr(0.5);
    if (!skipped) {
      commit.add_scalars(std::string(sizeof(kernels::StepScalars), '\0'));
    }
    return commit;
  }
  static v1::Abort AbortOf(int64_t step) {
    v1::Abort abort;
    abort.set_step(step);
    abort.set_next_generation(2);
    abort.set_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
    abort.set_text("mend it");
    return abort;
  }

  // Up to the vote.
  void Compute() {
    PushAll();
    for (int b = 0; b < num_buckets_; ++b) Reduced(b);
    for (int l = 0; l < kRanks; ++l) Input(l);
  }
  // From the commit on.
  void CarryOut(int64_t step) {
    engine_->OnCommit(CommitOf(step));
    for (int b = 0; b < num_buckets_; ++b) Updated(b);
    for (int b = 0; b < num_buckets_; ++b) Published(b);
  }
  CallLog TakeLog() { return std::exchange(log_, {}); }

  int num_buckets_ = 0;
  std::unique_ptr<layout::Layout> layout_;
  ManualClock clock_;
  CallLog log_;
  FakeWorkers workers_{&log_};
  FakeMembers members_{&log_};
  FakeLoads loads_{&log_};
  FakeCollective collective_{&log_};
  FakeOptimizer optimizer_{&log_};
  FakeState state_{&log_};
  std::unique_ptr<JobEngine> engine_;
};

}  // namespace ballast::engine

#endif  // SERVER_ENGINE_JOB_ENGINE_TESTING_H_
