// A message as JSON for people and scripts: field names as in the .proto,
// every field there (zeros too), 64-bit integers as numbers (protobuf's own
// mapping makes them strings).
//
// Threading: pure function.
#ifndef PROTO_TO_JSON_H_
#define PROTO_TO_JSON_H_

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

namespace ballast::proto {

// Supports what our messages use: scalars, strings, enums (by name),
// messages, repeated fields; bytes as hex; no maps. A double that JSON cannot
// say (NaN, infinity) is null.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

}  // namespace ballast::proto

#endif  // PROTO_TO_JSON_H_
