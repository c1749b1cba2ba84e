#include "server/membership/rendezvous.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::membership {
namespace {

using base::StatusIs;
using ::testing::HasSubstr;

class RendezvousTest : public ::testing::Test {
 protected:
  static v1::RendezvousRequest Request(int node, int num_nodes = 3,
                                       uint64_t incarnation = 0) {
    v1::RendezvousRequest request;
    request.set_job("job");
    request.set_node(node);
    request.set_incarnation(incarnation != 0 ? incarnation : 100 + node);
    request.set_node_name(absl::StrCat("host-", node));
    request.set_endpoint(absl::StrCat("endpoint ", request.incarnation()));
    v1::Join* const join = request.mutable_join();
    join->set_num_nodes(num_nodes);
    join->set_local_world_size(2);
    join->set_layout_digest("layout");
    join->set_model_digest("model");
    v1::JobOption* const hold = join->add_options();
    hold->set_name("hold");
    hold->set_value("10m");
    return request;
  }
  absl::StatusOr<v1::RendezvousReply> Poll(
      const v1::RendezvousRequest& request) {
    now_ += absl::Milliseconds(10);
    return rendezvous_.Poll(request, now_);
  }
  // What the node waits for; "" if all are there.
  std::string Wait(const v1::RendezvousRequest& request) {
    const auto reply = Poll(request);
    EXPECT_THAT(reply, base::IsOk());
    return reply.ok() ? reply->waiting_for() : "";
  }

  Rendezvous rendezvous_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(RendezvousTest, TellsEveryoneOfAllOnceAllAreThere) {
  EXPECT_EQ(Wait(Request(2)), "nodes 0, 1 of 3 have not come");
  EXPECT_EQ(Wait(Request(0)), "node 1 of 3 has not come");
  EXPECT_EQ(Wait(Request(1)), "");
  // A reply that was lost is asked for again.
  for (const int node : {0, 1, 2, 1}) {
    const auto reply = Poll(Request(node));
    ASSERT_THAT(reply, base::IsOk());
    ASSERT_EQ(reply->members_size(), 3);
    for (int n = 0; n < 3; ++n) {
      EXPECT_EQ(reply->members(n).node(), n);
      EXPECT_EQ(reply->members(n).incarnation(), 100u + n);
      EXPECT_EQ(reply->members(n).endpoint(),
                absl::StrCat("endpoint ", 100 + n));
      EXPECT_EQ(reply->members(n).node_name(), absl::StrCat("host-", n));
    }
  }
}

v1::RendezvousRequest GoingOn(v1::RendezvousRequest request, int64_t step) {
  request.mutable_join()->set_has_state(true);
  request.mutable_join()->set_generation(2);
  request.mutable_join()->set_weight_version(step);
  return request;
}

// How far each has come is no difference here.
TEST_F(RendezvousTest, NodesThatGoOnMeetAgain) {
  for (const int node : {0, 1, 2}) Wait(Request(node));
  // New lives, while node 0 still has the old one.
  EXPECT_THAT(Wait(GoingOn(Request(1, 3, 201), 7)),
              HasSubstr("must end first"));
  rendezvous_.Leave("job", Incarnation(100));
  EXPECT_THAT(Wait(GoingOn(Request(1, 3, 201), 7)), HasSubstr("have not come"));
  EXPECT_THAT(Wait(GoingOn(Request(0, 3, 200), 8)), HasSubstr("has not come"));
  EXPECT_EQ(Wait(GoingOn(Request(2, 3, 202), 7)), "");
  EXPECT_EQ(Poll(GoingOn(Request(0, 3, 200), 8))->members(1).incarnation(),
            201u);
}

// Its daemon was replaced once more while it waited.
TEST_F(RendezvousTest, TheNextLifeOfANodeThatGoesOnTakesItsPlace) {
  Wait(GoingOn(Request(1, 2, 201), 7));
  Wait(GoingOn(Request(1, 2, 301), 7));
  EXPECT_EQ(Wait(GoingOn(Request(0, 2, 200), 7)), "");
  EXPECT_EQ(Poll(GoingOn(Request(0, 2, 200), 7))->members(1).incarnation(),
            301u);
  // Another host does not.
  rendezvous_.Leave("job", Incarnation(200));
  Wait(GoingOn(Request(1, 2, 201), 7));
  v1::RendezvousRequest other = GoingOn(Request(1, 2, 401), 7);
  other.set_node_name("host-9");
  EXPECT_THAT(Wait(other), HasSubstr("is there already, on \"host-1\""));
}

// I23: its part of the state is lost; nobody waits for it in vain.
TEST_F(RendezvousTest, WhoComesWithoutItsMemoryIsLost) {
  Wait(GoingOn(Request(0, 3, 200), 7));
  Wait(GoingOn(Request(2, 3, 202), 7));
  EXPECT_THAT(Wait(Request(1, 3, 301)), HasSubstr("without its part"));
  for (const int node : {0, 2}) {
    EXPECT_THAT(Poll(GoingOn(Request(node, 3, 200 + node), 7)),
                StatusIs(absl::StatusCode::kAborted,
                         "node 1 on \"host-1\" has come back without"));
  }
  // And then there is room for a new run.
  Wait(Request(0, 3, 300));
  EXPECT_EQ(Wait(Request(2, 3, 302)), "");
}

TEST_F(RendezvousTest, WhoGoesOnAloneIsToldSo) {
  Wait(Request(0, 3, 300));
  EXPECT_THAT(Poll(GoingOn(Request(1, 3, 201), 7)),
              StatusIs(absl::StatusCode::kAborted, "node 0 on \"host-0\""));
}

// I23: who does not poll any more is not there.
TEST_F(RendezvousTest, ForgetsSilentNodes) {
  Wait(Request(0));
  Wait(Request(1));
  now_ += absl::Seconds(6);
  EXPECT_EQ(Wait(Request(2)), "nodes 0, 1 of 3 have not come");
  EXPECT_EQ(rendezvous_.num_members(), 1u);
}

TEST_F(RendezvousTest, RefusesWhoDiffersFromNodeZero) {
  v1::RendezvousRequest other = Request(1);
  other.mutable_join()->set_local_world_size(4);
  EXPECT_NE(Wait(other), "") << "nobody to compare with yet";
  Wait(Request(2));
  EXPECT_THAT(Wait(Request(0)), HasSubstr("local world size is 4 on node 1"));
  EXPECT_THAT(Poll(other),
              StatusIs(absl::StatusCode::kInvalidArgument, "local world size"));
  EXPECT_THAT(Wait(Request(0)), HasSubstr("node 1 of 3 has not come; refused"));
  EXPECT_EQ(Wait(Request(1)), "") << "mended";
}

TEST_F(RendezvousTest, RefusesAnotherNumberOfNodes) {
  Wait(Request(0, 2));
  EXPECT_THAT(Poll(Request(1, 3)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "number of nodes is 3 on node 1 but 2"));
}

// A rank list that contradicts itself.
TEST_F(RendezvousTest, RefusesASecondLivingNodeOfOneRank) {
  Wait(Request(1));
  const v1::RendezvousRequest second = Request(1, 3, 777);
  EXPECT_THAT(Wait(second), HasSubstr("host-1"));
  EXPECT_THAT(Wait(second), HasSubstr("may still live"));
  Wait(Request(1));  // it does
  EXPECT_THAT(Poll(second), StatusIs(absl::StatusCode::kAlreadyExists,
                                     "two nodes of job \"job\""));
  Wait(Request(0));
  EXPECT_EQ(Wait(Request(2)), "") << "the first is not disturbed";
}

TEST_F(RendezvousTest, ReplacesANodeThatStartedAgain) {
  Wait(Request(1));
  const v1::RendezvousRequest again = Request(1, 3, 777);
  for (int i = 0; i < 5; ++i) {
    Wait(again);
    Wait(Request(0));
    EXPECT_NE(Wait(Request(2)), "") << "not with the dead one";
    now_ += absl::Seconds(1);
  }
  EXPECT_EQ(Wait(again), "");
  EXPECT_EQ(Poll(Request(0))->members(1).incarnation(), 777u);
}

TEST_F(RendezvousTest, ACompleteRunIsNotDisturbedUntilNodeZeroLeaves) {
  for (const int node : {0, 1, 2}) Wait(Request(node));
  EXPECT_THAT(Wait(Request(1, 3, 777)), HasSubstr("must end first"));
  rendezvous_.Leave("job", Incarnation(99));  // another life of node 0
  EXPECT_EQ(Poll(Request(1))->members_size(), 3);
  rendezvous_.Leave("job", Incarnation(100));
  EXPECT_EQ(rendezvous_.num_members(), 0u);
  EXPECT_EQ(Wait(Request(1, 3, 777)), "nodes 0, 2 of 3 have not come");
}

TEST_F(RendezvousTest, NodeZeroMayLeaveBeforeAllAreThere) {
  Wait(Request(0));
  Wait(Request(1));
  rendezvous_.Leave("job", Incarnation(100));
  EXPECT_EQ(Wait(Request(2)), "node 0 of 3 has not come");
}

// I27
TEST_F(RendezvousTest, RefusesMalformedRequests) {
  const auto refuse = [&](auto change) {
    v1::RendezvousRequest request = Request(1);
    change(&request);
    EXPECT_THAT(Poll(request), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_EQ(rendezvous_.num_members(), 0u);
  };
  refuse([](auto* r) { r->set_job("../job"); });
  refuse([](auto* r) { r->set_node(3); });
  refuse([](auto* r) { r->set_node(-1); });
  refuse([](auto* r) { r->set_incarnation(0); });
  refuse([](auto* r) { r->clear_endpoint(); });
  refuse([](auto* r) { r->set_endpoint(std::string(8193, 'x')); });
  refuse([](auto* r) { r->set_node_name(std::string(257, 'x')); });
  refuse([](auto* r) { r->mutable_join()->set_num_nodes(1 << 30); });
  refuse([](auto* r) { r->mutable_join()->set_num_nodes(1); });
  refuse([](auto* r) {
    r->mutable_join()->set_layout_digest(std::string(257, 'x'));
  });
}

// I27: memory is bounded, and comes back.
TEST_F(RendezvousTest, BoundsJobsAndMembers) {
  Rendezvous rendezvous({.max_jobs = 2, .max_members = 3});
  v1::RendezvousRequest request = Request(0);
  const auto poll = [&](const char* job, int node) {
    request.set_job(job);
    request.set_node(node);
    return rendezvous.Poll(request, now_).status();
  };
  EXPECT_THAT(poll("a", 0), base::IsOk());
  EXPECT_THAT(poll("a", 1), base::IsOk());
  EXPECT_THAT(poll("b", 0), base::IsOk());
  EXPECT_THAT(poll("b", 1), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(poll("c", 0), StatusIs(absl::StatusCode::kResourceExhausted));
  now_ += absl::Minutes(1);
  EXPECT_THAT(poll("c", 0), base::IsOk());
  EXPECT_EQ(rendezvous.num_members(), 1u);
}

// Whoever contradicts node 0 hears so at once, and so does whoever waits.
TEST_F(RendezvousTest, ARefusalNamesTheOptionBothValuesAndBothNodes) {
  Wait(Request(0, 2));
  v1::RendezvousRequest other = Request(1, 2);
  other.mutable_join()->mutable_options(0)->set_value("5m");
  const std::string difference = "hold is 5m on node 1 but 10m on node 0";
  EXPECT_THAT(Poll(other),
              StatusIs(absl::StatusCode::kInvalidArgument, difference));
  EXPECT_THAT(Wait(Request(0, 2)),
              HasSubstr("node 1 of 2 has not come; refused: " + difference));
  EXPECT_EQ(Wait(Request(1, 2)), "");  // mended
}

TEST_F(RendezvousTest, OptionsAreComparedByTheirCanonicalForm) {
  v1::RendezvousRequest first = Request(0, 2);
  first.mutable_join()->mutable_options(0)->set_canonical("600s");
  v1::RendezvousRequest second = Request(1, 2);
  second.mutable_join()->mutable_options(0)->set_value("600s (default)");
  second.mutable_join()->mutable_options(0)->set_canonical("600s");
  Wait(first);
  EXPECT_EQ(Wait(second), "");
}

TEST_F(RendezvousTest, OptionsOfAnotherVersionAreRefused) {
  Wait(Request(0, 2));
  v1::RendezvousRequest other = Request(1, 2);
  other.mutable_join()->add_options()->set_name("colour");
  EXPECT_THAT(Poll(other), StatusIs(absl::StatusCode::kInvalidArgument,
                                    "use one version of ballastd"));
}

TEST_F(RendezvousTest, OptionsAreBounded) {  // I27
  v1::RendezvousRequest many = Request(1, 2);
  for (int i = 0; i < 32; ++i) many.mutable_join()->add_options();
  EXPECT_THAT(Poll(many), StatusIs(absl::StatusCode::kInvalidArgument));
  v1::RendezvousRequest longer = Request(1, 2);
  longer.mutable_join()->mutable_options(0)->set_value(std::string(257, 'x'));
  EXPECT_THAT(Poll(longer), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(rendezvous_.num_members(), 0);
}

// I23: whoever waits for a node that gives up hears its reason at once.
TEST_F(RendezvousTest, ANodeThatGivesUpIsToldToThoseThatWait) {
  Wait(Request(0));
  Wait(Request(2));
  v1::RendezvousRequest leave = Request(2);
  leave.mutable_leave()->set_code(9);
  leave.mutable_leave()->set_text("rank 4 closed the job");
  v1::RendezvousRequest other_life = leave;
  other_life.set_incarnation(777);
  EXPECT_THAT(Poll(other_life), base::IsOk());  // says nothing of this run
  EXPECT_EQ(Wait(Request(0)), "node 1 of 3 has not come");
  EXPECT_THAT(Poll(leave), base::IsOk());
  EXPECT_EQ(rendezvous_.num_members(), 1);
  EXPECT_THAT(Poll(Request(0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "node 2 has given up: rank 4 closed the job"));
  // A new run is not concerned.
  for (const int node : {1, 2}) Wait(Request(node, 3, 500 + node));
  EXPECT_EQ(Wait(Request(0, 3, 500)), "");
}

TEST_F(RendezvousTest, WhoHasAllNodesIsNotToldToGiveUp) {
  for (const int node : {0, 1, 2}) Wait(Request(node));
  v1::RendezvousRequest leave = Request(2);
  leave.mutable_leave()->set_code(9);
  Poll(leave).IgnoreError();
  EXPECT_EQ(Wait(Request(1)), "");
}

}  // namespace
}  // namespace ballast::membership
