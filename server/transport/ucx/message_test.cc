#include "server/transport/ucx/message.h"

#include <array>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/random.h"
#include "server/base/status_matchers.h"

namespace ballast::transport {
namespace {

using base::IsOk;
using base::StatusIs;

constexpr uint64_t kSeed = 5;

MessageHeader SomeHeader(uint32_t payload_bytes) {
  MessageHeader header;
  header.kind = static_cast<uint16_t>(MessageKind::kChunk);
  header.sender_incarnation = 11;
  header.job = 7;
  header.generation = 2;
  header.step = 9;
  header.bucket = 3;
  header.argument = 1;
  header.payload_bytes = payload_bytes;
  return header;
}

std::vector<std::byte> Encoded(const MessageHeader& header,
                               uint64_t seed = kSeed) {
  std::vector<std::byte> message(kHeaderBytes + header.payload_bytes);
  EncodeHeader(header, seed, message);
  return message;
}

TEST(MessageTest, ComesBackAsItWas) {
  const auto header = DecodeHeader(Encoded(SomeHeader(100)), kSeed);
  ASSERT_THAT(header, IsOk());
  EXPECT_EQ(header->sender_incarnation, 11u);
  EXPECT_EQ(header->job, 7u);
  EXPECT_EQ(header->step, 9);
  EXPECT_EQ(header->bucket, 3);
  EXPECT_EQ(header->payload_bytes, 100u);
}

// I27: every flipped bit of a header is found.
TEST(MessageTest, FindsEveryFlippedBit) {
  const std::vector<std::byte> good = Encoded(SomeHeader(0));
  for (size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= std::byte(1 << (bit % 8));
    EXPECT_THAT(DecodeHeader(bad, kSeed), StatusIs(absl::StatusCode::kDataLoss))
        << bit;
  }
}

TEST(MessageTest, RefusesWrongSizesKindsAndSeeds) {
  constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
  std::vector<std::byte> message = Encoded(SomeHeader(8));
  for (size_t size = 0; size < message.size(); ++size) {
    EXPECT_THAT(DecodeHeader(std::span(message).first(size), kSeed),
                StatusIs(kDataLoss));
  }
  message.push_back(std::byte{0});
  EXPECT_THAT(DecodeHeader(message, kSeed), StatusIs(kDataLoss, "payload"));
  EXPECT_THAT(DecodeHeader(Encoded(SomeHeader(8)), kSeed + 1),
              StatusIs(kDataLoss, "checksum"));
  for (const int kind : {0, kMaxMessageKind + 1, 0xffff}) {
    MessageHeader header = SomeHeader(0);
    header.kind = static_cast<uint16_t>(kind);
    EXPECT_THAT(DecodeHeader(Encoded(header), kSeed),
                StatusIs(kDataLoss, "kind"));
  }
}

TEST(MessageTest, RefusesRandomBytes) {
  base::SeededRandom random(1);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes(random.Below(3 * kHeaderBytes));
    for (std::byte& byte : bytes) byte = std::byte(random.Next());
    EXPECT_FALSE(DecodeHeader(bytes, kSeed).ok());
  }
}

TEST(MessageTest, PayloadChecksumDependsOnBytesAndSeed) {
  std::array<std::byte, 100> bytes{};
  const uint64_t before = PayloadChecksum(bytes, kSeed);
  EXPECT_EQ(before, PayloadChecksum(bytes, kSeed));
  EXPECT_NE(before, PayloadChecksum(bytes, kSeed + 1));
  bytes[99] = std::byte{1};
  EXPECT_NE(before, PayloadChecksum(bytes, kSeed));
}

}  // namespace
}  // namespace ballast::transport
