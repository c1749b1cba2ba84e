#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"
#include "server/engine/fake_neighbours.h"
#include "server/engine/job_engine_testing.h"

namespace ballast::engine {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST_F(JobEngineTest, RanksThatDifferRefuseInWords) {
  Make(1);
  PushAll();
  Reduced(0);
  Input(0, 0.001);
  Input(1, 0.002);
  ASSERT_EQ(members_.votes.size(), 1);
  EXPECT_EQ(members_.votes[0].refusal_text(),
            "param group 0: lr is 0.001 on rank 2 but 0.002 on rank 3; all "
            "ranks must pass the same value");
  EXPECT_NE(members_.votes[0].refusal_code(), 0);
}

TEST_F(JobEngineTest, InputThatCannotBeRefuses) {  // I26
  Make(1);
  PushAll();
  Reduced(0);
  Input(0);
  engine_->OnStepInputRefused(LocalRank(1),
                              absl::InvalidArgumentError("lr is nan"));
  ASSERT_EQ(members_.votes.size(), 1);
  EXPECT_EQ(members_.votes[0].refusal_text(), "lr is nan");
}

TEST_F(JobEngineTest, MalformedCommitEndsTheJob) {  // I27
  Make(1);
  Compute();
  v1::Commit commit = CommitOf(1);
  commit.set_scalars(0, "short");
  TakeLog();
  engine_->OnCommit(commit);
  EXPECT_THAT(
      TakeLog(),
      ElementsAre("leave: the commit of step 1 has 5 bytes of scalars"));
  engine_->OnCommit(CommitOf(1));
  EXPECT_THAT(TakeLog(), IsEmpty());
}

TEST_F(JobEngineTest, OptimizerThatRefusesEndsTheJob) {
  Make(1);
  Compute();
  optimizer_.begin_status = absl::InvalidArgumentError("no momentum buffer");
  engine_->OnCommit(CommitOf(1));
  EXPECT_THAT(log_, Contains("leave: no momentum buffer"));
  EXPECT_THAT(log_, Not(Contains(HasSubstr("update"))));
}

TEST_F(JobEngineTest, FailedExchangeEndsTheJobOnce) {
  Make(1);
  engine_->OnFailed(absl::UnavailableError("node 0 is gone"));
  engine_->OnFailed(absl::UnavailableError("node 0 is gone"));
  EXPECT_THAT(TakeLog(),
              ElementsAre("open 1/1",
                          "leave: node 1 cannot exchange buckets: node 0 is "
                          "gone"));
}

TEST_F(JobEngineTest, StopWaitsForUpdatesAndStartsNothing) {
  Make(2);
  Compute();
  engine_->OnCommit(CommitOf(1));
  EXPECT_EQ(engine_->updates_in_flight(), 2);
  TakeLog();
  engine_->Stop();
  Updated(0);
  EXPECT_EQ(engine_->updates_in_flight(), 1);
  Updated(1);
  EXPECT_EQ(engine_->updates_in_flight(), 0);
  PushAll();
  EXPECT_THAT(TakeLog(), IsEmpty());
}

TEST_F(JobEngineTest, ACodecThatDoesNotFitEndsTheJob) {  // I27
  Make(1);
  Compute();
  collective_.revise_status = absl::DataLossError("of no metered tensor");
  TakeLog();
  engine_->OnCommit(CommitOf(1));
  EXPECT_THAT(TakeLog(), Contains("leave: of no metered tensor"));
  EXPECT_EQ(engine_->counts().committed, 0);
}

// Also where the collective reads no changes any more: its gate is shut.
TEST_F(JobEngineTest, ACodecOnNoPathEndsTheJob) {  // I27
  for (const int path : {-1, 2, 1 << 20}) {
    Make(1);
    Compute();
    v1::Commit commit = CommitOf(1);
    commit.add_codec_changes()->set_path(path);
    TakeLog();
    engine_->OnCommit(commit);
    EXPECT_THAT(TakeLog(),
                ElementsAre(absl::StrCat(
                    "leave: the commit of step 1 changes a codec on path ",
                    path, ", possible are 0 to 1")));
    EXPECT_EQ(engine_->counts().committed, 0);
  }
}

}  // namespace
}  // namespace ballast::engine
