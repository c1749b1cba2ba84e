#include "client/ctl/render.h"

#include <string>

#include "client/ctl/table.h"
#include "gtest/gtest.h"

namespace ballast::ctl {
namespace {

TEST(TableTest, AlignsColumnsWithoutTrailingBlanks) {
  Table table({"A", "LONG", "Z"});
  table.AddRow({"wide", "x", ""});
  EXPECT_EQ(table.ToString(), "A     LONG  Z\nwide  x\n");
}

TEST(RenderTest, FormatsBytesAndSeconds) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "16.0 EiB");
  EXPECT_EQ(FormatSeconds(0.25), "0.25 s");
  EXPECT_EQ(FormatSeconds(61), "1m 1s");
  EXPECT_EQ(FormatSeconds(7380), "2h 3m");
}

TEST(RenderTest, StatusShowsAddressesAndJobs) {
  v1::StatusReply status;
  status.set_state("serving");
  status.set_metrics_address("127.0.0.1:7471");
  status.set_keeper("lost");
  v1::JobSummary* const job = status.add_jobs();
  job->set_name("gpt2");
  job->set_waiting_for("rank 2 has not attached");
  job->set_world_size(8);
  job->set_num_attached(3);
  const std::string text = Render(status);
  EXPECT_NE(text.find("http://127.0.0.1:7471/metrics"), std::string::npos);
  EXPECT_NE(text.find("gpt2"), std::string::npos);
  EXPECT_NE(text.find("keeper           lost\n"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 2 has not attached"), std::string::npos);
  EXPECT_EQ(text.find("cannot be read"), std::string::npos);
  status.set_snapshots_error("no such directory");
  EXPECT_NE(Render(status).find("cannot be read: no such directory\n"),
            std::string::npos);
  EXPECT_NE(text.find(" 3/8 "), std::string::npos) << text;
  job->set_num_nodes(2);
  EXPECT_NE(Render(status).find(" 3/4 of 8 "), std::string::npos);
  EXPECT_EQ(text.find("job gpt2:"), std::string::npos);
  job->set_notice("no snapshots are saved: another life");
  EXPECT_NE(
      Render(status).find("\njob gpt2: no snapshots are saved: another life\n"),
      std::string::npos);
  EXPECT_EQ(Render(status).find("is not kept"), std::string::npos);
  job->set_not_kept("of its \"weights\": the keeper is full");
  EXPECT_NE(Render(status).find("\njob gpt2 is not kept: of its \"weights\": "
                                "the keeper is full\n"),
            std::string::npos);
}

TEST(RenderTest, JobShowsItsWorkers) {
  v1::GetJobReply job;
  job.mutable_summary()->set_name("gpt2");
  v1::WorkerStatus* const worker = job.add_workers();
  worker->set_state("ready");
  worker->set_pid(4711);
  const std::string text = Render(job);
  EXPECT_NE(text.find("ready  4711  -        0"), std::string::npos) << text;
  EXPECT_NE(text.find("nobody"), std::string::npos);
  worker->set_process("stopped");
  EXPECT_NE(Render(job).find("ready  4711  stopped  0"), std::string::npos);
  EXPECT_EQ(text.find("error of"), std::string::npos);  // nothing is quantized
}

TEST(RenderTest, AJobShowsItsPartitionGroups) {
  v1::GetJobReply job;
  job.mutable_summary()->set_num_nodes(4);
  job.mutable_summary()->set_world_size(8);
  EXPECT_NE(Render(job).find("4 nodes, 8 workers\n"), std::string::npos);
  job.mutable_summary()->set_partition_nodes(2);
  EXPECT_NE(Render(job).find("4 nodes, 8 workers, state shared by groups of 2 "
                             "nodes\n"),
            std::string::npos);
}

TEST(RenderTest, AJobNamesTheTensorsThatAreWorst) {
  v1::GetJobReply job;
  v1::PathQuality* const path = job.add_quality();
  path->set_path("gradients");
  EXPECT_NE(Render(job).find("error of gradients not measured yet"),
            std::string::npos);
  path->set_sampled(4096);
  path->set_relative_error(0.0214);
  path->set_clipped_share(0.015);
  path->set_residual_norm(0.25);
  for (int i = 0; i < 4; ++i) {
    v1::TensorQuality* const worst = path->add_worst();
    worst->set_tensor("h." + std::to_string(i));
    worst->set_codec("int4");
    worst->set_relative_error(0.04 - 0.01 * i);
  }
  EXPECT_NE(Render(job).find("error of gradients 0.0214, 1.5 % clipped, "
                             "residual 0.25; worst h.0 0.04 (int4), h.1 0.03 "
                             "(int4), h.2 0.02 (int4)\n"),
            std::string::npos)
      << Render(job);
}

TEST(RenderTest, AJobSaysWhatItsBudgetDidAndIfExactWouldBeFaster) {  // I24
  v1::GetJobReply job;
  job.set_max_relative_error(0.1);
  v1::PathQuality* const path = job.add_quality();
  path->set_path("weights");
  path->set_num_wider(1);
  v1::WiderCodec* const wider = path->add_wider();
  wider->set_tensor("wte");
  wider->set_codec("int8");
  wider->set_policy_codec("int4");
  job.set_exact_ratio(0.5);
  const std::string text = Render(job);
  EXPECT_NE(text.find("1 tensors: wte int8 for int4\n"), std::string::npos);
  EXPECT_NE(text.find("0.1 per tensor"), std::string::npos);
  EXPECT_NE(text.find("use exchange=exact"), std::string::npos);
  job.set_exact_ratio(3);
  EXPECT_EQ(Render(job).find("use exchange=exact"), std::string::npos);
}

}  // namespace
}  // namespace ballast::ctl
