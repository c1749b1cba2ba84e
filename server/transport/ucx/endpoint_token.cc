#include "server/transport/ucx/endpoint_token.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/base/xxh3.h"

namespace ballast::transport {
namespace {

constexpr uint32_t kMagic = 0x54584c42;  // "BLXT"
constexpr uint16_t kVersion = 1;
constexpr size_t kMaxAddressBytes = 4096;

struct Preamble {
  uint32_t magic;
  uint16_t version;
  uint16_t address_bytes;
  int32_t node;
  uint32_t reserved;
  uint64_t incarnation;
};
static_assert(sizeof(Preamble) == 24);

}  // namespace

std::string EncodeToken(const EndpointToken& token, uint64_t seed) {
  const Preamble preamble = {kMagic,
                             kVersion,
                             static_cast<uint16_t>(token.address.size()),
                             token.node.value(),
                             0,
                             token.incarnation.value()};
  std::string bytes(reinterpret_cast<const char*>(&preamble), sizeof(preamble));
  bytes += token.address;
  const uint64_t checksum =
      XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
  bytes.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  return bytes;
}

absl::StatusOr<EndpointToken> DecodeToken(std::string_view bytes,
                                          uint64_t seed) {
  Preamble preamble;
  uint64_t checksum;
  constexpr size_t kAround = sizeof(preamble) + sizeof(checksum);
  if (bytes.size() < kAround || bytes.size() > kAround + kMaxAddressBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("endpoint token of ", bytes.size(), " bytes"));
  }
  std::memcpy(&preamble, bytes.data(), sizeof(preamble));
  if (preamble.magic != kMagic || preamble.version != kVersion) {
    return absl::InvalidArgumentError("not an endpoint token of this version");
  }
  if (preamble.address_bytes != bytes.size() - kAround) {
    return absl::InvalidArgumentError(
        absl::StrCat("endpoint token says ", preamble.address_bytes,
                     " bytes of address, has ", bytes.size() - kAround));
  }
  const size_t end = bytes.size() - sizeof(checksum);
  std::memcpy(&checksum, bytes.data() + end, sizeof(checksum));
  if (checksum != XXH3_64bits_withSeed(bytes.data(), end, seed)) {
    return absl::InvalidArgumentError("endpoint token fails its checksum");
  }
  return EndpointToken{
      NodeRank(preamble.node), Incarnation(preamble.incarnation),
      std::string(bytes.substr(sizeof(preamble), preamble.address_bytes))};
}

}  // namespace ballast::transport
