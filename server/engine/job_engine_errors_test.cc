#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"
#include "server/engine/fake_neighbours.h"
#include "server/engine/job_engine.h"
#include "server/engine/job_engine_testing.h"
#include "server/layout/layout.h"

namespace ballast::engine {
namespace {

// A vote has the errors of its own gradients, and of the weights that they
// were computed from, once those were published.
TEST_F(JobEngineTest, AVoteTellsTheErrorsOfWhatWasSent) {  // I21
  collective_.is_metered = true;
  Make(1);
  const auto sampled = [](const v1::PathErrors& errors) {
    return errors.tensors_size() == 0 ? 0 : errors.tensors(0).sampled();
  };
  const auto last_vote = [&] { return members_.votes.back(); };
  Compute();
  EXPECT_EQ(sampled(last_vote().gradient_errors()), 1);
  EXPECT_EQ(sampled(last_vote().weight_errors()), 0);
  CarryOut(1);
  Compute();
  EXPECT_EQ(sampled(last_vote().gradient_errors()), 2);
  EXPECT_EQ(sampled(last_vote().weight_errors()), 101);
  // The same again after an abort (I20), not after a step that was skipped.
  engine_->OnAbort(AbortOf(2));
  engine_->Start(Generation(2), Step(2), &collective_);
  Compute();
  EXPECT_EQ(sampled(last_vote().weight_errors()), 101);
  engine_->OnCommit(CommitOf(2, /*skipped=*/true));
  Compute();
  EXPECT_EQ(sampled(last_vote().gradient_errors()), 3);
  EXPECT_EQ(sampled(last_vote().weight_errors()), 0);
}

TEST_F(JobEngineTest, TheErrorsOfACommitAreThoseOfTheWholeJob) {  // I21, I25
  Make(1);
  Compute();
  v1::Commit commit = CommitOf(1);
  commit.mutable_gradient_errors()->set_relative_error(0.02);
  commit.mutable_gradient_errors()->set_clipped_share(0.5);
  commit.mutable_gradient_errors()->set_sampled(64);
  commit.mutable_weight_errors()->set_relative_error(0.01);
  engine_->OnCommit(commit);
  Updated(0);
  Published(0);
  const auto& quality = engine_->last_summary().quality;
  EXPECT_EQ(quality[0].relative_error, 0.02);
  EXPECT_EQ(quality[0].clipped_share, 0.5);
  EXPECT_EQ(quality[0].sampled, 64);
  EXPECT_EQ(quality[1].sampled, 0);
  EXPECT_EQ(quality[1].relative_error, 0.01);
  // A skipped step measures nothing: what was known stays.
  Compute();
  engine_->OnCommit(CommitOf(2, /*skipped=*/true));
  EXPECT_EQ(engine_->last_summary().quality[0].relative_error, 0);
  EXPECT_EQ(engine_->last_errors(layout::Path::kGradients).relative_error(),
            0.02);
}

// Between two steps, before anything of either may start (I25).
TEST_F(JobEngineTest, ACommitChangesCodecsBeforeAnythingElse) {  // I21
  Make(1);
  Compute();
  TakeLog();
  v1::Commit commit = CommitOf(1);
  v1::CodecChange* const change = commit.add_codec_changes();
  change->set_path(1);
  change->set_tensor(1);
  change->set_to(0);
  collective_.wider[0] = 2;  // of the gradients, since an earlier step
  engine_->OnCommit(commit);
  const CallLog log = TakeLog();
  ASSERT_GE(log.size(), 3u);
  EXPECT_EQ(log[0], "record 1");
  EXPECT_EQ(log[1], "codec 0 for 1");
  Updated(0);
  Published(0);
  EXPECT_EQ(engine_->last_summary().fallbacks, 3);
  EXPECT_EQ(engine_->last_summary().quality[0].num_wider, 2);
  EXPECT_EQ(engine_->last_summary().quality[1].num_wider, 1);
  // Gradients cross by other codecs from the next step on only.
  collective_.wider = {0, 1};
  Compute();
  v1::CodecChange of_gradients = *change;
  of_gradients.set_path(0);
  commit = CommitOf(2);
  *commit.add_codec_changes() = of_gradients;
  engine_->OnCommit(commit);
  Updated(0);
  Published(0);
  EXPECT_EQ(engine_->last_summary().fallbacks, 1);
  EXPECT_EQ(engine_->last_summary().quality[0].num_wider, 0);
  EXPECT_EQ(engine_->last_summary().quality[1].num_wider, 1);
}

TEST_F(JobEngineTest, SaysWhetherExactWouldBeFaster) {  // I24
  Make(1);
  engine_ = JobEngine::Create({.layout = layout_.get(),
                               .node = NodeRank(1),
                               .clock = &clock_,
                               .state = &state_,
                               .optimizer = &optimizer_,
                               .workers = &workers_,
                               .members = &members_,
                               .exact_bytes = 800});
  engine_->Start(Generation(1), Step(1), &collective_);
  for (int step = 1; step <= 16; ++step) {
    EXPECT_EQ(engine_->exact_ratio(), 0);
    Compute();
    collective_.bytes.payload_sent += 100;
    collective_.exchange_times.wire_seconds += 0.1;
    collective_.exchange_times.exchange_seconds += 1;
    CarryOut(step);
  }
  EXPECT_NEAR(engine_->exact_ratio(), 0.8, 1e-12);
}

TEST_F(JobEngineTest, TheResidualIsThatOfTheLastCommit) {  // I12, I21
  Make(1);
  Compute();
  const auto told = [&] {
    return engine_->last_summary()
        .quality[static_cast<size_t>(layout::Path::kGradients)]
        .residual_norm;
  };
  collective_.residual_norm = 0.25;
  EXPECT_EQ(engine_->residual_norm(), std::nullopt);
  CarryOut(1);
  EXPECT_EQ(told(), 0.25);
  collective_.residual_norm = 0.5;
  EXPECT_EQ(engine_->residual_norm(), 0.25);
  // What a skipped step would have left is dropped with it.
  Compute();
  engine_->OnCommit(CommitOf(2, /*skipped=*/true));
  EXPECT_EQ(engine_->residual_norm(), 0.25);
  EXPECT_EQ(told(), std::nullopt);
  // The control: the next one counts.
  Compute();
  CarryOut(3);
  EXPECT_EQ(engine_->residual_norm(), 0.5);
  EXPECT_EQ(told(), 0.5);
}

// A change makes the bucket's operation anew, which has encoded nothing yet.
TEST_F(JobEngineTest, TheResidualIsThatOfTheCodecsThatLeftIt) {  // I21
  Make(1);
  Compute();
  v1::Commit commit = CommitOf(1);
  v1::CodecChange* const change = commit.add_codec_changes();
  change->set_tensor(1);
  change->set_to(0);
  collective_.residual_norm = 0.25;
  collective_.forgets_residual = true;
  engine_->OnCommit(commit);
  EXPECT_EQ(engine_->residual_norm(), 0.25);
  EXPECT_EQ(collective_.residual_norm, std::nullopt);  // it was revised
}

TEST_F(JobEngineTest, ACommitSaysHowManyUpdatesAreApplied) {  // I12
  Make(1);
  Compute();
  CarryOut(1);
  Compute();
  v1::Commit skipped = CommitOf(2, /*skipped=*/true);
  skipped.set_optimizer_step(1);
  engine_->OnCommit(skipped);
  Compute();
  engine_->OnAbort(AbortOf(3));
  EXPECT_EQ(collective_.optimizer_steps, (std::vector<int64_t>{1, 1}));
}

// ---- Links that are lost. ----

}  // namespace
}  // namespace ballast::engine
