// What a worker says when it opens its session.
#ifndef CLIENT_WORKER_OPTIONS_H_
#define CLIENT_WORKER_OPTIONS_H_

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/worker/control_channel.h"
#include "proto/worker.pb.h"

namespace ballast::worker {

inline constexpr char kDefaultAddress[] = "unix:///run/ballast/ballastd.sock";

struct Options {
  std::string address = kDefaultAddress;  // unix:///path, unix:path or a path
  std::string token;  // content of the token file; empty if none is asked for
  v1::JobSpec job;    // name, tensors, optimizer, exchange, …
  v1::Topology topology;
  v1::Resume resume = v1::RESUME_AUTO;
  std::string load;         // a snapshot to start from; empty: by `resume`
  std::string coordinator;  // host:port of node 0; empty: the daemon's own
  // Rank 0: the value of each tensor of `job`, in its order, exactly its size;
  // used until Open returns. Empty: no values (resumed jobs). Other ranks'
  // values are not used. Values that share memory are refused, on every rank:
  // tied tensors are one tensor, registered once (I16).
  std::vector<std::span<const std::byte>> initial_values;
  // How long to wait for a daemon that does not answer, and for all of the
  // opening (all ranks must come; a daemon that goes away must come again).
  absl::Duration connect_timeout = absl::Seconds(30);
  absl::Duration open_timeout = absl::Minutes(10);
  Interrupted interrupted;  // also asked during Step and Wait
  // One line for the user, on the calling thread, when the opening has to begin
  // anew; once. Null: none.
  std::function<void(const std::string& line)> log;
};

}  // namespace ballast::worker

#endif  // CLIENT_WORKER_OPTIONS_H_
