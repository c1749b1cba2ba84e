// How one job's exchanges travel: what the links cost is measured once they
// are there, told to the coordinator with the join, and the worst of all nodes
// comes back with the view; by it every node chooses, exchange by exchange,
// the same algorithm (server/transport/routed).
//
//   Measure(transport, done) ─▶ Join.link_cost … View.link_cost ─▶ Open(cost)
//     ─▶ transport(), Halves()
//
// Threading: control thread only.
// Lifetime: borrows the transport; exchanges over transport() are released
// before this.
#ifndef SERVER_DAEMON_JOB_ROUTES_H_
#define SERVER_DAEMON_JOB_ROUTES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "proto/peer.pb.h"
#include "server/base/clock.h"
#include "server/transport/routed/cost_model.h"
#include "server/transport/routed/link_probe.h"
#include "server/transport/routed/routed_transport.h"
#include "server/transport/transport.h"

namespace ballast::daemon {

// Nullopt: by the cost. As in the daemon's configuration.
struct Algorithms {
  std::optional<transport::Algorithm> gather = std::nullopt;
  std::optional<transport::Algorithm> reduce = std::nullopt;
};

class JobRoutes {
 public:
  JobRoutes(const Algorithms& algorithms, int num_nodes, uint64_t job_key,
            const base::Clock* clock)
      : algorithms_(algorithms),
        num_nodes_(num_nodes),
        job_key_(job_key),
        clock_(clock) {}

  // Two nodes have nothing to choose and nothing to measure. `done` may be
  // called from inside.
  void Measure(transport::Transport* transport,
               absl::AnyInvocable<void(absl::Status) &&> done);
  // What this node measured.
  const v1::LinkCost& measured() const { return measured_; }

  // The cost that all nodes choose by.
  void Open(const v1::LinkCost& cost);
  const transport::LinkCost& cost() const { return cost_; }
  // The transport goes away; Measure and Open follow with another one.
  void Close();
  // Null before Open.
  transport::Transport* transport() const { return routed_.get(); }
  // Whether sums of parts of so many bytes are added on their way. Only asked
  // where they can be.
  bool Halves(uint64_t part_bytes);

  // "latency 31 us, 9 us a message, 118 MB/s; gather: 12 direct; reduce: 8
  // direct, 4 bruck": of the exchanges prepared; "4 bruck where doubling does
  // not do" if another was asked for. Empty before Open.
  std::string Describe() const;

 private:
  const Algorithms algorithms_;
  const int num_nodes_;
  const uint64_t job_key_;
  const base::Clock* const clock_;
  transport::Transport* inner_ = nullptr;
  std::unique_ptr<transport::LinkProbe> probe_;
  v1::LinkCost measured_;
  transport::LinkCost cost_;
  std::unique_ptr<transport::RoutedTransport> routed_;
  int64_t num_halved_ = 0;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_JOB_ROUTES_H_
