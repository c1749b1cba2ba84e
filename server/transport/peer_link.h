// Small frames between daemons: views, votes, commits. Frames of one sender
// to one receiver arrive in order and at most once on a sound network; nothing
// says that a frame arrived. Receivers must bear loss, repetition and
// reordering: tests inject all three.
//
// Threading: control thread only, observers too.
#ifndef SERVER_TRANSPORT_PEER_LINK_H_
#define SERVER_TRANSPORT_PEER_LINK_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "server/base/ids.h"

namespace ballast::transport {

inline constexpr size_t kMaxFrameBytes = 1 << 20;

class PeerLinkObserver {
 public:
  virtual ~PeerLinkObserver() = default;

  // `frame` is hostile input (I27). Never called from inside Send.
  virtual void OnFrame(NodeRank from, std::string frame) = 0;
};

class PeerLink {
 public:
  virtual ~PeerLink() = default;

  virtual NodeRank self() const = 0;

  // Frames that come while no observer is set are dropped.
  virtual void SetObserver(PeerLinkObserver* observer) = 0;

  // Queues a frame. InvalidArgument beyond kMaxFrameBytes. Unavailable when it
  // is known that the peer cannot be reached. To oneself: delivered.
  virtual absl::Status Send(NodeRank to, std::string frame) = 0;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_PEER_LINK_H_
