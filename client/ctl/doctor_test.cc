#include "client/ctl/doctor.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::ctl {
namespace {

using State = Finding::State;
using ::testing::HasSubstr;

class DoctorTest : public testing::Test {
 protected:
  // All is well.
  DoctorTest() {
    status_.set_state("serving");
    status_.set_keeper("connected");
    job_.mutable_summary()->set_name("gpt2");
    job_.mutable_summary()->set_state("running");
    job_.mutable_snapshots()->set_enabled(true);
    job_.mutable_replicas()->set_enabled(true);
    job_.set_steps_committed(1000);
    job_.set_exact_ratio(3);
    for (const char* state : {"self", "ready"}) {
      job_.add_nodes()->set_state(state);
    }
    for (const char* name : {"gradients", "weights"}) {
      v1::PathQuality* const path = job_.add_quality();
      path->set_path(name);
      path->set_sampled(4096);
      path->set_relative_error(0.1);
    }
  }

  std::vector<Finding> Findings() const {
    const v1::GetJobReply jobs[] = {job_};
    return Examine(status_, jobs);
  }
  // What is not ok: "state subject check", one a line.
  std::string Bad() const {
    std::string text;
    for (const Finding& finding : Findings()) {
      if (finding.state == State::kOk) continue;
      EXPECT_TRUE(!finding.fix.empty() || finding.state == State::kSkipped)
          << finding.text;
      absl::StrAppend(&text,
                      finding.state == State::kWrong     ? "wrong "
                      : finding.state == State::kSkipped ? "skipped "
                                                         : "warning ",
                      finding.subject, " ", finding.check, "\n");
    }
    return text;
  }

  v1::StatusReply status_;
  v1::GetJobReply job_;
};

TEST_F(DoctorTest, NothingIsSaidOfWhatIsWell) {  // the control of all below
  EXPECT_EQ(Bad(), "");
  EXPECT_TRUE(IsWell(Findings()));
  EXPECT_EQ(Examine(status_, {}).size(), 2u);
}

TEST_F(DoctorTest, TheDirectoryMayBeUnreadable) {
  status_.set_snapshots_error("cannot open /mnt: Permission denied");
  EXPECT_EQ(Bad(), "wrong daemon snapshots\n");
}

TEST_F(DoctorTest, AJobMayNotBeKept) {
  job_.mutable_summary()->set_not_kept("of its \"weights\": it is full");
  EXPECT_EQ(Bad(), "wrong job gpt2 keeping\n");
  EXPECT_FALSE(IsWell(Findings()));
  EXPECT_THAT(Render(Findings()), HasSubstr("of its \"weights\": it is full"));
}

TEST_F(DoctorTest, TheDaemonMayDrainOrHaveNoKeeper) {
  status_.set_state("draining");
  status_.set_keeper("off");
  EXPECT_EQ(Bad(), "warning daemon state\nwarning daemon keeper\n");
  EXPECT_TRUE(IsWell(Findings()));
  status_.set_state("serving");
  status_.set_keeper("lost");
  EXPECT_EQ(Bad(), "wrong daemon keeper\n");
  EXPECT_FALSE(IsWell(Findings()));
}

TEST_F(DoctorTest, RecommendsExactWhereItIsFaster) {  // I24
  job_.set_exact_ratio(0.5);
  EXPECT_EQ(Bad(), "warning job gpt2 exchange\n");
  EXPECT_THAT(Render(Findings()), HasSubstr("-> exchange=exact\n"));
  job_.set_exact_ratio(1);
  EXPECT_EQ(Bad(), "");
  job_.set_exact_ratio(0);
  EXPECT_EQ(Bad(), "skipped job gpt2 exchange\n");
  job_.clear_quality();  // nothing is quantized
  EXPECT_EQ(Bad(), "");
}

TEST_F(DoctorTest, SaysWhatABudgetWidenedAndWhatIsClipped) {  // I21
  v1::PathQuality* const path = job_.mutable_quality(1);
  path->set_num_wider(2);
  path->add_wider()->set_tensor("wte");
  job_.set_max_relative_error(0.05);
  EXPECT_EQ(Bad(), "warning job gpt2 error budget\n");
  EXPECT_THAT(Render(Findings()),
              HasSubstr("2 tensors of weights cross wider than asked for, by "
                        "max_relative_error=0.05, wte"));
  path->set_num_wider(0);
  job_.mutable_quality(0)->set_clipped_share(0.02);
  EXPECT_EQ(Bad(), "warning job gpt2 clipping\n");
  job_.mutable_quality(0)->set_clipped_share(0.005);
  EXPECT_EQ(Bad(), "");
}

TEST_F(DoctorTest, WaitingIsToldOnceItLasts) {  // I23
  job_.mutable_summary()->set_waiting_for("rank 2 has not pushed");
  job_.set_steps_since_progress_ms(100);
  EXPECT_EQ(Bad(), "") << "every step waits for its slowest rank";
  job_.set_steps_since_progress_ms(30000);
  EXPECT_EQ(Bad(), "warning job gpt2 progress\n") << "steps may be long";
  EXPECT_THAT(Render(Findings()), HasSubstr("rank 2 has not pushed"));
  job_.mutable_summary()->set_state("gathering");
  EXPECT_EQ(Bad(), "wrong job gpt2 progress\n");
  job_.set_steps_since_progress_ms(0);
  EXPECT_EQ(Bad(), "warning job gpt2 progress\n");
  job_.mutable_summary()->set_state("failed");
  job_.set_last_failure("node 1 is lost");
  EXPECT_EQ(Bad(), "wrong job gpt2 progress\n");
  EXPECT_THAT(Render(Findings()), HasSubstr("failed: node 1 is lost"));
}

TEST_F(DoctorTest, NamesNodesWithoutALinkAndSlowLinks) {
  job_.mutable_nodes(1)->set_node(1);
  job_.mutable_nodes(1)->set_state("absent");
  EXPECT_EQ(Bad(), "wrong job gpt2 links\n");
  EXPECT_THAT(Render(Findings()), HasSubstr("node 1 is absent"));
  job_.mutable_nodes(1)->set_state("connecting");
  EXPECT_EQ(Bad(), "warning job gpt2 links\n");
  job_.mutable_nodes(1)->set_state("ready");
  job_.set_link_bytes_per_second(1e9);
  EXPECT_EQ(Bad(), "") << "the slowest is not known";
  job_.set_slowest_link_bytes_per_second(9e8);
  EXPECT_EQ(Bad(), "");
  job_.set_slowest_link_bytes_per_second(1e8);
  EXPECT_EQ(Bad(), "warning job gpt2 link speed\n");
}

TEST_F(DoctorTest, CountsStepsThatCameToNothingAndDamage) {
  job_.set_steps_skipped(10);
  job_.set_steps_aborted(10);
  EXPECT_EQ(Bad(), "") << "1 %";
  job_.set_steps_skipped(11);
  EXPECT_EQ(Bad(), "warning job gpt2 steps\n");
  job_.set_steps_skipped(0);
  job_.set_steps_aborted(11);
  EXPECT_EQ(Bad(), "warning job gpt2 steps\n");
  job_.set_steps_aborted(0);
  job_.set_weight_chunks_bad(2);
  job_.set_weight_chunks_healed(2);
  EXPECT_EQ(Bad(), "warning job gpt2 weights\n");
  job_.set_weight_chunks_healed(1);
  EXPECT_EQ(Bad(), "wrong job gpt2 weights\n");
}

TEST_F(DoctorTest, NamesAStoppedWorker) {
  v1::WorkerStatus* const worker = job_.add_workers();
  worker->set_rank(3);
  worker->set_pid(4711);
  for (const char* const process : {"", "running", "unknown"}) {
    worker->set_process(process);
    EXPECT_EQ(Bad(), "") << process;
  }
  worker->set_process("stopped");
  EXPECT_EQ(Bad(), "wrong job gpt2 workers\n");
}

TEST_F(DoctorTest, KnowsWhetherAnythingOutlivesANode) {
  job_.mutable_snapshots()->set_last_error("no space left");
  job_.mutable_replicas()->set_last_error("node 1 has no room");
  EXPECT_EQ(Bad(), "wrong job gpt2 snapshots\nwrong job gpt2 replicas\n");
  job_.mutable_snapshots()->clear_last_error();
  job_.mutable_replicas()->clear_last_error();
  job_.mutable_snapshots()->set_other_life("another life of the job");
  EXPECT_EQ(Bad(), "wrong job gpt2 snapshots\n");
  job_.mutable_snapshots()->clear_other_life();
  job_.mutable_snapshots()->set_skipped(1);
  job_.mutable_replicas()->set_skipped(1);
  EXPECT_EQ(Bad(), "warning job gpt2 snapshots\nwarning job gpt2 replicas\n");
  job_.clear_snapshots();
  job_.clear_replicas();
  EXPECT_EQ(Bad(), "warning job gpt2 copies\n");
  job_.mutable_gather()->set_refusals(1);
  EXPECT_EQ(Bad(), "warning job gpt2 copies\nwarning job gpt2 gathers\n");
}

TEST_F(DoctorTest, ShowsLinesAndJson) {
  status_.set_keeper("lost");
  const std::string text = Render(Findings());
  EXPECT_THAT(text, HasSubstr("wrong    daemon   keeper       does not "));
  EXPECT_THAT(text, HasSubstr("ok       job gpt2 links        2 nodes\n"));
  const auto json = ToJson(Findings());
  EXPECT_EQ(json[1]["subject"], "daemon");
  EXPECT_EQ(json[1]["state"], "wrong");
  EXPECT_NE(json[1]["fix"], "");
  EXPECT_TRUE(ToJson({}).is_array());
}

}  // namespace
}  // namespace ballast::ctl
