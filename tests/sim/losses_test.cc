#include "tests/sim/losses.h"

#include <string>

#include "gtest/gtest.h"
#include "proto/peer.pb.h"
#include "tests/sim/fault.h"
#include "tests/sim/line.h"

namespace ballast::sim {
namespace {

Fault Lost(Fault::Kind kind, const char* what, bool is_node, int where) {
  Fault fault;
  fault.kind = kind;
  fault.what = what;
  fault.is_node = is_node;
  fault.where = where;
  return fault;
}

std::string Frame(void (*fill)(v1::PeerFrame*)) {
  v1::PeerFrame frame;
  fill(&frame);
  return frame.SerializeAsString();
}

std::string Vote() {
  return Frame([](v1::PeerFrame* frame) { frame->mutable_vote(); });
}

TEST(LossesTest, KnowsFramesByWhatTheyCarry) {
  EXPECT_EQ(KindOfFrame(Vote()), "vote");
  EXPECT_EQ(KindOfFrame(Frame([](v1::PeerFrame* frame) {
              frame->mutable_snapshot()->mutable_armed();
            })),
            "armed");
  EXPECT_EQ(KindOfFrame(Frame([](v1::PeerFrame* frame) {
              frame->mutable_resume()->mutable_offer();
            })),
            "offer");
  EXPECT_EQ(KindOfFrame(""), "");
  EXPECT_EQ(KindOfFrame("\xff"), "");
}

// A frame that is new to the protocol is one that scenarios can lose.
TEST(LossesTest, ScenariosCanLoseFramesOfEveryKind) {
  const auto can_lose = [](const std::string& what) {
    for (const char* const kind : {"lose_request", "lose_reply"}) {
      Line line({"step", "1", kind, what, "node", "1"});
      if (ParseFault(&line, /*nodes=*/2, /*workers=*/1).ok()) return true;
    }
    return false;
  };
  EXPECT_FALSE(can_lose("bananas"));
  int num_kinds = 0;
  for (const google::protobuf::Descriptor* const type :
       {v1::PeerFrame::descriptor(), v1::SnapshotFrame::descriptor(),
        v1::ResumeFrame::descriptor()}) {
    const google::protobuf::OneofDescriptor* const body =
        type->FindOneofByName("body");
    for (int i = 0; i < body->field_count(); ++i) {
      const std::string& name = body->field(i)->name();
      if (name == "snapshot" || name == "resume") continue;  // what they carry
      EXPECT_TRUE(can_lose(name)) << name;
      ++num_kinds;
    }
  }
  EXPECT_GT(num_kinds, 18);
}

TEST(LossesTest, LosesOneRequestOfWhoAsks) {
  const Fault fault = Lost(Fault::Kind::kLoseRequest, "vote", true, 2);
  Losses losses;
  EXPECT_EQ(losses.TakeFrame(NodeRank(2), NodeRank(0), Vote()), nullptr)
      << "not yet";
  losses.Arm(fault);
  EXPECT_EQ(losses.TakeFrame(NodeRank(1), NodeRank(0), Vote()), nullptr);
  EXPECT_EQ(losses.TakeFrame(NodeRank(0), NodeRank(2), Vote()), nullptr);
  EXPECT_EQ(losses.TakeCall(2, "vote", /*is_reply=*/false), nullptr);
  EXPECT_EQ(losses.Missed().size(), 1);
  EXPECT_EQ(losses.TakeFrame(NodeRank(2), NodeRank(0), Vote()), &fault);
  EXPECT_EQ(losses.TakeFrame(NodeRank(2), NodeRank(0), Vote()), nullptr)
      << "once";
  EXPECT_TRUE(losses.Missed().empty());
}

TEST(LossesTest, LosesTheReplyToWhoAsks) {
  const std::string commit =
      Frame([](v1::PeerFrame* frame) { frame->mutable_commit(); });
  const Fault frame = Lost(Fault::Kind::kLoseReply, "commit", true, 1);
  const Fault poll = Lost(Fault::Kind::kLoseReply, "poll", true, 1);
  const Fault call = Lost(Fault::Kind::kLoseReply, "begin", false, 1);
  Losses losses;
  for (const Fault* const fault : {&frame, &poll, &call}) losses.Arm(*fault);
  EXPECT_EQ(losses.TakeFrame(NodeRank(1), NodeRank(0), commit), nullptr);
  EXPECT_EQ(losses.TakeFrame(NodeRank(0), NodeRank(1), commit), &frame);
  EXPECT_EQ(losses.TakePoll(1, /*is_reply=*/false), nullptr);
  EXPECT_EQ(losses.TakePoll(1, /*is_reply=*/true), &poll);
  EXPECT_EQ(losses.TakeCall(1, "begin", /*is_reply=*/false), nullptr);
  EXPECT_EQ(losses.TakeCall(1, "close", /*is_reply=*/true), nullptr);
  EXPECT_EQ(losses.TakeCall(1, "begin", /*is_reply=*/true), &call);
}

TEST(LossesTest, MaySayThatThereNeedBeNoOccasion) {
  Fault fault = Lost(Fault::Kind::kLoseRequest, "join", true, 1);
  fault.may_miss = true;
  Losses losses;
  losses.Arm(fault);
  EXPECT_TRUE(losses.Missed().empty());
}

}  // namespace
}  // namespace ballast::sim
