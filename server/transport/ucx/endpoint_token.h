// What a node gives others so that they can connect: opaque bytes for them,
// checked before they are used.
//
//   | magic u32 | version u16 | address bytes u16 | node i32 | 0 u32 |
//   | incarnation u64 | address … | XXH3-64 of all before, seeded |
#ifndef SERVER_TRANSPORT_UCX_ENDPOINT_TOKEN_H_
#define SERVER_TRANSPORT_UCX_ENDPOINT_TOKEN_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/base/ids.h"

namespace ballast::transport {

struct EndpointToken {
  NodeRank node;
  Incarnation incarnation;
  std::string address;
};

// `address` of at most 4096 bytes.
std::string EncodeToken(const EndpointToken& token, uint64_t seed);

// InvalidArgument says what is wrong.
absl::StatusOr<EndpointToken> DecodeToken(std::string_view bytes,
                                          uint64_t seed);

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_ENDPOINT_TOKEN_H_
