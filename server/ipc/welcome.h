// What a worker is given on its handle socket to speak gRPC: its key and one
// end of a new stream socket. First after its Hello; again when another life
// of the daemon has taken the connection over.
//
// Threading: thread-safe per socket.
#ifndef SERVER_IPC_WELCOME_H_
#define SERVER_IPC_WELCOME_H_

#include "absl/status/statusor.h"
#include "server/base/unique_fd.h"
#include "server/ipc/worker_link.h"

namespace ballast::ipc {

// This side's end, non-blocking. Unavailable if the worker is gone or does not
// read what it was sent.
absl::StatusOr<base::UniqueFd> SendWelcome(int socket,
                                           const ConnectionKey& key);

}  // namespace ballast::ipc

#endif  // SERVER_IPC_WELCOME_H_
