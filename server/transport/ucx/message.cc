#include "server/transport/ucx/message.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/base/xxh3.h"

namespace ballast::transport {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kMagic = 0x31584c42;  // "BLX1"
constexpr uint16_t kVersion = 1;

uint64_t HeaderChecksum(const MessageHeader& header, uint64_t seed) {
  return XXH3_64bits_withSeed(&header, offsetof(MessageHeader, header_checksum),
                              seed);
}

}  // namespace

uint64_t PayloadChecksum(std::span<const std::byte> payload, uint64_t seed) {
  return XXH3_64bits_withSeed(payload.data(), payload.size(), seed);
}

void EncodeHeader(MessageHeader header, uint64_t seed,
                  std::span<std::byte> to) {
  header.magic = kMagic;
  header.version = kVersion;
  header.header_checksum = HeaderChecksum(header, seed);
  std::memcpy(to.data(), &header, kHeaderBytes);
}

absl::StatusOr<MessageHeader> DecodeHeader(std::span<const std::byte> message,
                                           uint64_t seed) {
  if (message.size() < kHeaderBytes) {
    return absl::DataLossError(absl::StrCat(
        "message of ", message.size(), " bytes, header needs ", kHeaderBytes));
  }
  MessageHeader header;
  std::memcpy(&header, message.data(), kHeaderBytes);
  if (header.magic != kMagic) return absl::DataLossError("wrong magic");
  if (header.version != kVersion) {
    return absl::DataLossError(absl::StrCat("message version ", header.version,
                                            ", this is ", kVersion));
  }
  if (header.header_checksum != HeaderChecksum(header, seed)) {
    return absl::DataLossError("wrong header checksum");
  }
  if (header.kind == 0 || header.kind > kMaxMessageKind) {
    return absl::DataLossError(
        absl::StrCat("unknown message kind ", header.kind));
  }
  if (header.payload_bytes != message.size() - kHeaderBytes) {
    return absl::DataLossError(absl::StrCat(
        "header says ", header.payload_bytes, " bytes of payload, message has ",
        message.size() - kHeaderBytes));
  }
  return header;
}

}  // namespace ballast::transport
