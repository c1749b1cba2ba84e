#include "server/transport/ucx/protocol.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/random.h"
#include "server/base/status_matchers.h"
#include "server/transport/peer_link.h"
#include "server/transport/ucx/protocol_testing.h"

namespace ballast::transport {
namespace {

using base::IsOk;
using base::StatusIs;
using Message = ProtocolNetwork::Message;

constexpr uint32_t kChunk = 1000;
constexpr size_t kBytes = 3500;  // 4 chunks

Protocol::Options SomeOptions() {
  Protocol::Options options;
  options.exchanges.chunk_bytes = kChunk;
  options.exchanges.checksum_seed = 42;
  return options;
}

MessageHeader HeaderOf(const Message& message) {
  return DecodeHeader(message, 42).value();
}
bool IsKind(const Message& message, MessageKind kind) {
  return HeaderOf(message).kind == static_cast<uint16_t>(kind);
}

// Node 0 sends `out` to node 1.
class ProtocolTest : public ::testing::Test {
 protected:
  ProtocolTest() : ProtocolTest(SomeOptions()) {}
  explicit ProtocolTest(const Protocol::Options& options)
      : network_(3, options) {
    for (size_t i = 0; i < out_.size(); ++i) out_[i] = std::byte(i * 7 + 1);
    ExchangeSpec spec{
        .job = 7, .generation = Generation(1), .bucket = BucketId(3)};
    spec.sends = {{NodeRank(1), out_}};
    send_ = a()->Prepare(spec).value();
    spec.sends.clear();
    spec.receives = {{NodeRank(0), in_}};
    receive_ = b()->Prepare(spec).value();
  }

  Protocol* a() { return network_.node(0); }
  Protocol* b() { return network_.node(1); }

  void PostBoth(int64_t step = 1) {
    ASSERT_THAT(a()->Post(send_, Step(step), network_.now()), IsOk());
    ASSERT_THAT(b()->Post(receive_, Step(step), network_.now()), IsOk());
  }
  // The one completion of a node, if there is one.
  std::optional<absl::Status> Done(Protocol* node) {
    const auto completions = node->TakeDeliveries().completions;
    EXPECT_LE(completions.size(), 1u);
    if (completions.empty()) return std::nullopt;
    return completions[0].status;
  }
  void ExpectMoved() {
    EXPECT_EQ(Done(a()), absl::OkStatus());
    EXPECT_EQ(Done(b()), absl::OkStatus());
    EXPECT_EQ(in_, out_);
  }

  std::vector<std::byte> out_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> in_ = std::vector<std::byte>(kBytes);
  ProtocolNetwork network_;
  PreparedExchange* send_;
  PreparedExchange* receive_;
};

TEST_F(ProtocolTest, CountsPayloadAndHeadersApart) {
  network_.ConnectAll();
  PostBoth();
  ASSERT_TRUE(network_.Settle());
  ExpectMoved();
  const ByteCounters sent = a()->CountersOf(send_);
  EXPECT_EQ(sent.payload_sent, kBytes);
  // 4 chunks and an offer; the credit and the end come back.
  EXPECT_EQ(sent.wire_sent, kBytes + 5 * kHeaderBytes);
  EXPECT_EQ(sent.wire_received, 2 * kHeaderBytes);
  const ByteCounters received = b()->CountersOf(receive_);
  EXPECT_EQ(received.wire_received, sent.wire_sent);
  EXPECT_EQ(received.wire_sent, sent.wire_received);
  EXPECT_EQ(a()->PeerCounters(NodeRank(1)).payload_sent, kBytes);
  EXPECT_GT(a()->PeerCounters(NodeRank(1)).wire_sent, sent.wire_sent);
}

// Receiver credits: without a posted receive no byte of a part travels.
TEST_F(ProtocolTest, SendsNothingThatNoReceiveWaitsFor) {
  network_.ConnectAll();
  int num_chunks = 0;
  network_.SetTamper([&](NodeRank, Message message) {
    num_chunks += IsKind(message, MessageKind::kChunk);
    return std::vector<Message>{message};
  });
  ASSERT_THAT(a()->Post(send_, Step(1), network_.now()), IsOk());
  ASSERT_TRUE(network_.Settle());
  EXPECT_EQ(num_chunks, 0);
  ASSERT_THAT(b()->Post(receive_, Step(1), network_.now()), IsOk());
  ASSERT_TRUE(network_.Settle());
  EXPECT_EQ(num_chunks, 4);
}

TEST_F(ProtocolTest, ASendPreparedAfterTheCreditCameIsServed) {
  network_.ConnectAll();
  a()->Release(send_);
  ASSERT_THAT(b()->Post(receive_, Step(1), network_.now()), IsOk());
  ASSERT_TRUE(network_.Settle());
  EXPECT_EQ(a()->stats().unmatched, 1u);
  ExchangeSpec spec{
      .job = 7, .generation = Generation(1), .bucket = BucketId(3)};
  spec.sends = {{NodeRank(1), out_}};
  send_ = a()->Prepare(spec).value();
  ASSERT_THAT(a()->Post(send_, Step(1), network_.now()), IsOk());
  ASSERT_TRUE(network_.Settle());
  ExpectMoved();
}

TEST_F(ProtocolTest, ABadChunkIsAskedForAgainOnce) {
  network_.ConnectAll();
  int num_bad = 0;
  network_.SetTamper([&](NodeRank, Message message) {
    if (IsKind(message, MessageKind::kChunk) &&
        HeaderOf(message).argument == 2 && num_bad++ == 0) {
      message.back() ^= std::byte{1};
    }
    return std::vector<Message>{message};
  });
  PostBoth();
  ASSERT_TRUE(network_.Settle());
  ExpectMoved();
  EXPECT_EQ(b()->stats().bad_payloads, 1u);
  EXPECT_EQ(a()->stats().resends, 1u);
}

TEST_F(ProtocolTest, AChunkThatIsBadTwiceIsDataLossOnBothSides) {
  network_.ConnectAll();
  network_.SetTamper([&](NodeRank, Message message) {
    if (IsKind(message, MessageKind::kChunk)) message.back() ^= std::byte{1};
    return std::vector<Message>{message};
  });
  PostBoth();
  ASSERT_TRUE(network_.Settle());
  const auto received = Done(b());
  ASSERT_TRUE(received.has_value());
  EXPECT_THAT(*received, StatusIs(absl::StatusCode::kDataLoss, "node 0"));
  EXPECT_THAT(*received,
              StatusIs(absl::StatusCode::kDataLoss, "bucket 3, step 1"));
  const auto sent = Done(a());
  ASSERT_TRUE(sent.has_value());
  EXPECT_THAT(*sent, StatusIs(absl::StatusCode::kDataLoss, "node 1"));
}

// I19: any order, any repetition; each chunk takes effect once.
TEST_F(ProtocolTest, BearsRepetitionAndReordering) {
  network_.ConnectAll();
  base::SeededRandom random(3);
  std::vector<Message> held;
  network_.SetTamper([&](NodeRank to, Message message) {
    std::vector<Message> arriving = {message, message};
    if (to != NodeRank(1)) return arriving;
    for (Message& old : held) arriving.push_back(std::move(old));
    held.clear();
    if (random.Below(2) == 0) held.push_back(message);
    std::ranges::reverse(arriving);
    return arriving;
  });
  for (int64_t step = 1; step <= 20; ++step) {
    std::ranges::fill(in_, std::byte{0});
    out_[0] = std::byte(step);
    PostBoth(step);
    ASSERT_TRUE(network_.Settle());
    ExpectMoved();
  }
  EXPECT_GT(b()->stats().duplicates + b()->stats().fenced, 0u);
}

// Bytes of a Post that was cancelled never reach the next one.
TEST_F(ProtocolTest, ASenderThatStartsAgainIsReadFromTheStart) {
  network_.ConnectAll();
  int num_chunks = 0;
  network_.SetTamper([&](NodeRank, Message message) {
    if (IsKind(message, MessageKind::kChunk) && ++num_chunks == 2) {
      a()->Cancel(send_);
      std::ranges::fill(out_, std::byte{9});
      EXPECT_THAT(a()->Post(send_, Step(1), network_.now()), IsOk());
    }
    return std::vector<Message>{message};
  });
  PostBoth();
  ASSERT_TRUE(network_.Settle());
  ExpectMoved();
}

// The fence: a life that ended is not heard, nor one that comes too early.
TEST_F(ProtocolTest, AnotherIncarnationIsFenced) {
  network_.ConnectAll();
  std::optional<Message> credit;
  network_.SetTamper([&](NodeRank, Message message) {
    if (IsKind(message, MessageKind::kCredit)) credit = message;
    return std::vector<Message>();
  });
  ASSERT_THAT(b()->Post(receive_, Step(1), network_.now()), IsOk());
  ASSERT_TRUE(network_.Settle());
  ASSERT_TRUE(credit.has_value());
  a()->Connect(NodeRank(1), Incarnation(555), network_.now());
  const uint64_t before = a()->stats().fenced;
  a()->OnMessage(*credit, network_.now());
  EXPECT_EQ(a()->stats().fenced, before + 1);
}

TEST_F(ProtocolTest, WhatIsPostedEarlyWaitsForThePeersConnect) {
  network_.Connect(0, 1);
  ASSERT_THAT(a()->Post(send_, Step(1), network_.now()), IsOk());
  ASSERT_THAT(a()->SendFrame(NodeRank(1), "early"), IsOk());
  ASSERT_TRUE(network_.Settle());
  EXPECT_EQ(Done(a()), std::nullopt);
  network_.Connect(1, 0);
  ASSERT_THAT(b()->Post(receive_, Step(1), network_.now()), IsOk());
  ASSERT_TRUE(network_.Settle());
  EXPECT_EQ(Done(a()), absl::OkStatus());
  const auto deliveries = b()->TakeDeliveries();
  ASSERT_EQ(deliveries.frames.size(), 1u);
  EXPECT_EQ(deliveries.frames[0].second, "early");
  EXPECT_EQ(in_, out_);
}

// I23.
TEST_F(ProtocolTest, APeerThatNeverAnswersFails) {
  network_.Connect(0, 1);
  ASSERT_THAT(a()->Post(send_, Step(1), network_.now()), IsOk());
  network_.Advance(absl::Seconds(19));
  EXPECT_EQ(Done(a()), std::nullopt);
  network_.Advance(absl::Seconds(2));
  const auto done = Done(a());
  ASSERT_TRUE(done.has_value());
  EXPECT_THAT(*done, StatusIs(absl::StatusCode::kUnavailable,
                              "node 1 does not answer"));
  EXPECT_THAT(a()->SendFrame(NodeRank(1), "x"),
              StatusIs(absl::StatusCode::kUnavailable, "node 1"));
}

TEST_F(ProtocolTest, ASilentPeerFailsAndNoOther) {
  network_.ConnectAll();
  network_.Advance(absl::Seconds(60));
  EXPECT_THAT(a()->PeerStatus(NodeRank(1)), IsOk()) << "pings are answered";
  ASSERT_THAT(a()->Post(send_, Step(1), network_.now()), IsOk());
  network_.Cut(1);
  network_.Advance(absl::Seconds(12));
  const auto done = Done(a());
  ASSERT_TRUE(done.has_value());
  EXPECT_THAT(*done,
              StatusIs(absl::StatusCode::kUnavailable, "node 1 is silent"));
  EXPECT_THAT(a()->PeerStatus(NodeRank(2)), IsOk());
  // What comes later fails at once, though not inside Post.
  ASSERT_THAT(a()->Post(send_, Step(1), network_.now()), IsOk());
  EXPECT_TRUE(Done(a()).has_value());
}

TEST_F(ProtocolTest, APauseOfOnesOwnIsNotThePeersSilence) {
  network_.ConnectAll();
  a()->Tick(network_.now() + absl::Seconds(1));
  a()->Tick(network_.now() + absl::Hours(1));  // this process was stopped
  EXPECT_THAT(a()->PeerStatus(NodeRank(1)), IsOk());
}

TEST_F(ProtocolTest, ABrokenConnectionFailsAndANewOneWorks) {
  network_.ConnectAll();
  ASSERT_THAT(a()->Post(send_, Step(1), network_.now()), IsOk());
  a()->OnConnectionFailed(NodeRank(1), 12345, absl::InternalError("old"));
  EXPECT_THAT(a()->PeerStatus(NodeRank(1)), IsOk());
  a()->OnConnectionFailed(NodeRank(1), 1, absl::InternalError("reset"));
  const auto done = Done(a());
  ASSERT_TRUE(done.has_value());
  EXPECT_THAT(
      *done, StatusIs(absl::StatusCode::kUnavailable, "node 1 is gone: reset"));
  network_.Connect(0, 1);
  network_.Connect(1, 0);
  PostBoth(2);
  ASSERT_TRUE(network_.Settle());
  ExpectMoved();
}

class DeadlineTest : public ProtocolTest {
 protected:
  static Protocol::Options WithDeadline() {
    Protocol::Options options = SomeOptions();
    options.exchanges.deadline = absl::Seconds(5);
    return options;
  }
  DeadlineTest() : ProtocolTest(WithDeadline()) {}
};

TEST_F(DeadlineTest, NamesWhoIsMissing) {
  network_.ConnectAll();
  ASSERT_THAT(b()->Post(receive_, Step(1), network_.now()), IsOk());
  network_.Advance(absl::Seconds(4));
  EXPECT_EQ(Done(b()), std::nullopt);
  network_.Advance(absl::Seconds(2));
  const auto done = Done(b());
  ASSERT_TRUE(done.has_value());
  EXPECT_THAT(*done, StatusIs(absl::StatusCode::kDeadlineExceeded,
                              "from node 0 0 of 4 chunks"));
}

TEST_F(ProtocolTest, PeersThatCutOtherwiseAreRefused) {
  network_.SetTamper([&](NodeRank, Message message) {
    MessageHeader header = HeaderOf(message);
    header.chunk_bytes *= 2;
    EncodeHeader(header, 42, message);
    return std::vector<Message>{message};
  });
  network_.ConnectAll();
  EXPECT_THAT(b()->PeerStatus(NodeRank(0)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "chunks of"));
}

TEST_F(ProtocolTest, FramesKeepTheirOrderAndTheirBounds) {
  network_.ConnectAll();
  for (int i = 0; i < 100; ++i) {
    ASSERT_THAT(a()->SendFrame(NodeRank(1), std::to_string(i)), IsOk());
  }
  ASSERT_TRUE(network_.Settle());
  const auto frames = b()->TakeDeliveries().frames;
  ASSERT_EQ(frames.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(frames[i].second, std::to_string(i));

  const std::string big(kMaxFrameBytes, 'x');
  EXPECT_THAT(a()->SendFrame(NodeRank(1), big + "x"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  network_.Cut(1);
  absl::Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    status = a()->SendFrame(NodeRank(1), big);
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(ProtocolTest, FramesThatNobodyTakesAreBounded) {
  network_.ConnectAll();
  const std::string big(kMaxFrameBytes, 'x');
  for (int i = 0; i < 100; ++i) {
    ASSERT_THAT(a()->SendFrame(NodeRank(1), big), IsOk());
    ASSERT_TRUE(network_.Settle());
  }
  EXPECT_LE(b()->TakeDeliveries().frames.size(), 64u);
  EXPECT_GT(b()->stats().frames_dropped, 0u);
}

// I27: valid envelopes with any contents, as only a rogue peer sends them.
TEST_F(ProtocolTest, HostileMessagesNeitherCrashNorEscape) {
  network_.ConnectAll();
  base::SeededRandom random(7);
  for (int i = 0; i < 30000; ++i) {
    if (i % 10 == 0) {
      a()->Cancel(send_);
      b()->Cancel(receive_);
      PostBoth(1 + random.Below(2));
    }
    MessageHeader header;
    header.kind = static_cast<uint16_t>(1 + random.Below(kMaxMessageKind));
    header.sender_incarnation = ProtocolNetwork::IncarnationOf(0).value();
    header.receiver_incarnation = ProtocolNetwork::IncarnationOf(1).value();
    header.job = 7;
    header.generation = 1;
    header.bucket = 3;
    header.step = 1 + random.Below(2);
    const auto wild = [&] {
      return random.Below(4) == 0 ? random.Next() : random.Below(6);
    };
    header.argument = static_cast<uint32_t>(wild());
    header.sender_post = wild();
    header.receiver_post = random.Below(2) == 0 ? receive_->post : wild();
    header.part_bytes = random.Below(4) == 0 ? wild() : kBytes;
    header.chunk_bytes = random.Below(8) == 0 ? wild() : kChunk;
    if (header.kind == static_cast<uint16_t>(MessageKind::kHello)) {
      header.chunk_bytes = kChunk;
    }
    header.payload_bytes =
        random.Below(3) == 0 ? random.Below(2 * kChunk) : kChunk;
    Message message(kHeaderBytes + header.payload_bytes);
    header.payload_checksum =
        random.Below(3) == 0
            ? 1
            : PayloadChecksum(std::span(message).subspan(kHeaderBytes), 42);
    EncodeHeader(header, 42, message);
    b()->OnMessage(message, network_.now());
    header.sender = 1;
    std::swap(header.sender_incarnation, header.receiver_incarnation);
    header.sender_post = random.Below(2) == 0 ? send_->post : wild();
    EncodeHeader(header, 42, message);
    a()->OnMessage(message, network_.now());
    if (i % 100 == 0) {
      EXPECT_TRUE(network_.Settle());
    }
    a()->TakeDeliveries();
    b()->TakeDeliveries();
  }
  EXPECT_TRUE(network_.Settle());
  // And it still works.
  a()->Cancel(send_);
  b()->Cancel(receive_);
  a()->TakeDeliveries();
  b()->TakeDeliveries();
}

}  // namespace
}  // namespace ballast::transport
