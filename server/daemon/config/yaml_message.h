// A YAML document laid strictly over a configuration message: sections are
// message fields, keys are scalar fields. The only user of yaml-cpp.
//
// Errors are InvalidArgument and name the key in dotted form, the value and
// what was expected; an unknown key also the nearest known one.
//
// Threading: pure functions.
#ifndef SERVER_DAEMON_CONFIG_YAML_MESSAGE_H_
#define SERVER_DAEMON_CONFIG_YAML_MESSAGE_H_

#include <google/protobuf/message.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace ballast::daemon {

absl::Status ApplyYamlTo(const std::string& yaml,
                         google::protobuf::Message* message);

// "section.key": `text` is read as the key's scalar.
absl::Status SetKey(std::string_view key, const std::string& text,
                    google::protobuf::Message* message);

// What ApplyYamlTo takes again.
std::string ToYaml(const google::protobuf::Message& message);

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_CONFIG_YAML_MESSAGE_H_
