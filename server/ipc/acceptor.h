// Takes the connections of a listening socket, without end and without
// spinning: while the process may have no more descriptors open, it pauses.
//
// Threading: control thread only. Borrows the loop and the socket, which
// outlive it.
#ifndef SERVER_IPC_ACCEPTOR_H_
#define SERVER_IPC_ACCEPTOR_H_

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/base/event_loop.h"
#include "server/base/executor.h"
#include "server/base/unique_fd.h"

namespace ballast::ipc {

class Acceptor {
 public:
  // `on_socket` gets each connection, non-blocking; it may call Stop.
  using OnSocket = absl::AnyInvocable<void(base::UniqueFd socket)>;

  Acceptor(base::EventLoop* loop, OnSocket on_socket);
  ~Acceptor() { Stop(); }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  absl::Status Start(int listener);
  // Nobody is taken any more, until Start.
  void Stop();

 private:
  void OnAcceptable();
  void Pause();

  base::EventLoop* const loop_;
  OnSocket on_socket_;
  int listener_ = -1;  // watched; -1: stopped, or pausing
  base::TimerId resume_timer_ = 0;
};

}  // namespace ballast::ipc

#endif  // SERVER_IPC_ACCEPTOR_H_
