// What operators are told of a job on its way (I23).
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference.h"
#include "tests/sim/cluster.h"

namespace ballast::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

Scenario Make(std::string_view more) {
  const auto parsed = ParseScenario("status", absl::StrCat(R"(
nodes 1
workers 2
tensor wte float32 3x2049
tensor table float32 100 frozen
optimizer adam lr 0.01
bucket_bytes 8192
steps 3
)",
                                                           std::string(more)));
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *parsed;
}

// What befalls rank 1 befalls the second node's instead.
Scenario OnTwoNodes(std::string_view more) {
  Scenario scenario = Make(more);
  scenario.nodes = 2;
  scenario.faults[0].where = 3;
  return scenario;
}

v1::JobSummary OnlyJob(Cluster& cluster, int node = 0) {
  const std::vector<v1::JobSummary> jobs = cluster.node(node).Jobs();
  EXPECT_THAT(jobs, SizeIs(1));
  return jobs.empty() ? v1::JobSummary() : jobs[0];
}

TEST(StatusTest, GatheringNamesWhoIsMissing) {
  Cluster cluster(Make("absent rank 1\n"), 1, kernels::Reference());
  cluster.Start();
  cluster.clock().RunFor(absl::Seconds(1));
  const v1::JobSummary job = OnlyJob(cluster);
  EXPECT_EQ(job.name(), kJobName);
  EXPECT_EQ(job.state(), "gathering");
  EXPECT_EQ(job.world_size(), 2);
  EXPECT_EQ(job.waiting_for(), "rank 1 has not attached");
  EXPECT_GT(job.bytes(), 0);
}

TEST(StatusTest, SlowRankIsNamed) {
  Cluster cluster(Make("at step 2 slow rank 1 back 1h\n"), 1,
                  kernels::Reference());
  cluster.Start();
  cluster.clock().RunFor(absl::Seconds(10));
  const v1::JobSummary job = OnlyJob(cluster);
  EXPECT_EQ(job.state(), "running");
  EXPECT_EQ(job.generation(), 1);
  EXPECT_EQ(job.open_step(), 2);
  EXPECT_EQ(job.weight_version(), 1);
  EXPECT_THAT(job.waiting_for(),
              HasSubstr("rank 1 (pid 1100) has not pushed 4 of 4 buckets of "
                        "step 2 for 9."));
  EXPECT_THAT(job.waiting_for(), Not(HasSubstr("stopped")));
}

TEST(StatusTest, StoppedRankIsToldFromASlowOne) {
  Cluster cluster(Make("at step 2 stop rank 1 back 20s\n"), 1,
                  kernels::Reference());
  cluster.Start();
  cluster.clock().RunFor(absl::Seconds(10));
  const v1::JobSummary job = OnlyJob(cluster);
  EXPECT_THAT(job.waiting_for(), HasSubstr("rank 1 (pid 1100) has not pushed"));
  EXPECT_THAT(job.waiting_for(),
              HasSubstr("; rank 1 (pid 1100) is stopped (SIGSTOP or a "
                        "debugger): kill -CONT 1100"));
  const auto reply = cluster.node(0).GetJob(kJobName);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->workers(0).process(), "running");
  EXPECT_EQ(reply->workers(1).process(), "stopped");
  const Result result = cluster.Finish();
  EXPECT_TRUE(result.passed());
}

// Nodes that wait hear it too.
TEST(StatusTest, AStoppedRankOfAnotherNodeIsNamed) {
  Cluster cluster(OnTwoNodes("at step 2 stop rank 1 back 20s\n"), 1,
                  kernels::Reference());
  cluster.Start();
  cluster.clock().RunFor(absl::Seconds(10));
  EXPECT_THAT(OnlyJob(cluster, 0).waiting_for(),
              HasSubstr("rank 3 (pid 1300) is stopped"));
}

TEST(StatusTest, LostRankIsNamed) {
  Cluster cluster(Make("at step 2 crash rank 1\n"), 1, kernels::Reference());
  cluster.Start();
  cluster.clock().RunFor(absl::Seconds(10));
  const v1::JobSummary job = OnlyJob(cluster);
  EXPECT_EQ(job.state(), "waiting");
  EXPECT_THAT(job.waiting_for(), HasSubstr("rank 1 (last pid 1100) is gone"));
}

TEST(StatusTest, OtherNodesAreNamed) {
  Cluster cluster(OnTwoNodes("at step 2 slow rank 1 back 20s\n"), 1,
                  kernels::Reference());
  cluster.Start();
  cluster.clock().RunFor(absl::Seconds(10));
  EXPECT_THAT(
      OnlyJob(cluster, 0).waiting_for(),
      HasSubstr("node 1: rank 3 (pid 1300) has not pushed 4 of 4 buckets "
                "of step 2"));
  EXPECT_THAT(OnlyJob(cluster, 1).waiting_for(),
              HasSubstr("rank 3 (pid 1300) has not pushed"));
}

TEST(StatusTest, TellsOneJobInDetail) {
  Cluster cluster(Make("at step 2 nan rank 0\nat step 3 slow rank 0 back 1h\n"),
                  1, kernels::Reference());
  cluster.Start();
  cluster.clock().RunFor(absl::Seconds(10));
  const absl::StatusOr<v1::GetJobReply> job = cluster.node(0).GetJob(kJobName);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->optimizer(), "adam");
  EXPECT_EQ(job->exchange(), "exact");
  EXPECT_EQ(job->num_tensors(), 2);
  EXPECT_EQ(job->num_elements(), 3 * 2049 + 100);
  EXPECT_EQ(job->num_buckets(), 4);
  EXPECT_EQ(job->steps_committed(), 2);
  EXPECT_EQ(job->steps_skipped(), 1);
  EXPECT_EQ(job->steps_aborted(), 0);
  EXPECT_GT(job->last_step_seconds(), 0);
  EXPECT_GE(job->steps_since_progress_ms(), 9000);
  ASSERT_EQ(job->workers_size(), 2);
  EXPECT_EQ(job->workers(1).rank(), 1);
  EXPECT_EQ(job->workers(1).pid(), 1100);
  EXPECT_EQ(job->workers(1).state(), "ready");
  EXPECT_EQ(job->workers(1).buckets_pushed(), 4);
  EXPECT_EQ(job->workers(0).buckets_pushed(), 0);
  const v1::MemoryParts& memory = job->memory();
  EXPECT_EQ(memory.residuals() + memory.snapshot() + memory.windows() +
                memory.replicas() + memory.owned() + memory.initial(),
            0);
  EXPECT_GT(memory.undo(), 0);
  EXPECT_EQ(memory.gradients() + memory.weights() + memory.control_blocks() +
                memory.state() + memory.undo(),
            job->summary().admitted_bytes());
}

TEST(StatusTest, TellsErrorsOfWhatIsQuantized) {  // I21
  Scenario scenario = Make(
      "exchange zeropp override:*=int4 gradients.error_feedback=true\n"
      "at step 3 slow rank 0 back 1h\n");
  scenario.nodes = 3;
  Cluster cluster(scenario, 1, kernels::Reference());
  cluster.Start();
  cluster.clock().RunFor(absl::Seconds(10));
  const absl::StatusOr<v1::GetJobReply> job = cluster.node(1).GetJob(kJobName);
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_EQ(job->quality_size(), 2);
  EXPECT_EQ(job->quality(0).path(), "gradients");
  EXPECT_GT(job->quality(0).residual_norm(), 0);
  EXPECT_EQ(job->quality(1).residual_norm(), 0);
  EXPECT_GT(job->link_bytes_per_second(), 0);
  EXPECT_GT(job->slowest_link_bytes_per_second(), 0);
  EXPECT_LE(job->slowest_link_bytes_per_second(), job->link_bytes_per_second());
}

TEST(StatusTest, UnknownJobIsNotFound) {
  Cluster cluster(Make(""), 1, kernels::Reference());
  const auto job = cluster.node(0).GetJob("other");
  EXPECT_EQ(job.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(job.status().message()), HasSubstr("\"other\""));
  EXPECT_THAT(cluster.node(0).Jobs(), IsEmpty());
}

}  // namespace
}  // namespace ballast::sim
