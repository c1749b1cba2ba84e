// What a membership decision asks for, with its reason in words.
#ifndef SERVER_MEMBERSHIP_ACTION_H_
#define SERVER_MEMBERSHIP_ACTION_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"

namespace ballast::membership {

struct Action {
  enum class Kind {
    kRecord,  // keep `frame` before any later action of the same decision
    kSend,    // to `to`, or to every node if empty
    kNotify,  // tell this node's observer (view, commit, abort, heal, leave)
    kDrop,    // the event changed nothing; counted
  };
  Kind kind;
  std::optional<NodeRank> to;
  v1::PeerFrame frame;  // body and generation; the sender adds the rest
  std::string why;
};

using Actions = std::vector<Action>;

inline Action Drop(std::string why) {
  return {Action::Kind::kDrop, std::nullopt, {}, std::move(why)};
}

// Codes come from other processes: anything unknown is kUnknown.
inline absl::Status ToStatus(int code, const std::string& text) {
  if (code < 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::UnknownError(text);
  }
  return absl::Status(static_cast<absl::StatusCode>(code), text);
}

inline v1::PeerFrame LeaveFrame(const absl::Status& why) {
  v1::PeerFrame frame;
  frame.mutable_leave()->set_code(static_cast<int>(why.code()));
  frame.mutable_leave()->set_text(std::string(why.message()));
  return frame;
}

inline v1::PeerFrame RelinkFrame(const absl::Status& why) {
  v1::PeerFrame frame = LeaveFrame(why);
  frame.mutable_leave()->set_relinks(true);
  return frame;
}

}  // namespace ballast::membership

#endif  // SERVER_MEMBERSHIP_ACTION_H_
