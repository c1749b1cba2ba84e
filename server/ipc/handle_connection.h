// A worker's link over its handle socket. The end is noticed by the socket
// (closed, or a broken packet) and by the pidfd (the process died although a
// forked child still holds the socket): whichever comes first.
//
// A worker that rings without pause gets a bounded number of doorbells read
// per turn of the loop. A worker that does not read its segments has at most
// kMaxQueuedSegments of them queued.
//
// Threading: control thread only.
#ifndef SERVER_IPC_HANDLE_CONNECTION_H_
#define SERVER_IPC_HANDLE_CONNECTION_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/event_loop.h"
#include "server/base/unique_fd.h"
#include "server/ipc/worker_link.h"

namespace ballast::ipc {

class HandleConnection final : public WorkerLink {
 public:
  static constexpr int kMaxQueuedSegments = 16;
  static constexpr int kMaxDoorbellsPerTurn = 64;

  // `socket` and `pidfd` are the worker's, already checked; `loop` outlives
  // the connection.
  HandleConnection(base::UniqueFd socket, base::UniqueFd pidfd,
                   const PeerIdentity& peer, const ConnectionKey& key,
                   base::EventLoop* loop);
  ~HandleConnection() override;

  const PeerIdentity& peer() const override { return peer_; }
  const ConnectionKey& key() const override { return key_; }
  void Start(WorkerLinkObserver* observer) override;
  absl::Status SendSegment(proto::SegmentKind kind, int fd,
                           uint64_t size_bytes) override;
  std::vector<int> fds() const override;
  absl::StatusOr<base::UniqueFd> SendControl() override;
  void Close() override;

 private:
  struct QueuedSegment {
    proto::SegmentMessage message;
    base::UniqueFd fd;
  };

  uint32_t SocketEvents() const;
  void OnSocket(uint32_t epoll_events);
  void OnExit();
  // An error is the end of the link, also the worker's own closing.
  absl::Status DrainDoorbells(bool* has_rung);
  absl::Status FlushSegments();
  void Lose(const absl::Status& reason);

  base::UniqueFd socket_;
  base::UniqueFd pidfd_;
  const PeerIdentity peer_;
  const ConnectionKey key_;
  base::EventLoop* const loop_;
  WorkerLinkObserver* observer_ = nullptr;
  std::deque<QueuedSegment> queue_;
  bool has_seen_exit_ = false;
  // Reports a failure of Start on the next turn.
  base::TimerId failure_timer_ = 0;
};

}  // namespace ballast::ipc

#endif  // SERVER_IPC_HANDLE_CONNECTION_H_
