// Measures what the links between the nodes of a job cost (cost_model.h): all
// nodes run the same exchanges at the same time and each takes the quickest of
// several tries, so that a moment's load does not count.
//
//   to the next node, 8 bytes      latency + per_message
//   to all others, 8 bytes each    latency + (N - 1) per_message
//   to the next node, 1 MiB        latency + per_message + 1 Mi per_byte
//   a copy of 64 KiB               64 Ki per_copied_byte
//
// 1 MiB, because links that are shaped let a burst through at a rate that they
// do not have: the first try, which does not count, uses it up. A credit of
// more than 1 MiB is still taken for the rate.
//
// Threading: control thread only.
// Lifetime: borrows transport and clock. Releasing it gives up: `done` is not
// called.
#ifndef SERVER_TRANSPORT_ROUTED_LINK_PROBE_H_
#define SERVER_TRANSPORT_ROUTED_LINK_PROBE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/ids.h"
#include "server/transport/routed/cost_model.h"
#include "server/transport/transport.h"

namespace ballast::transport {

class LinkProbe final : private ExchangeObserver {
 public:
  struct Parts {
    Transport* transport = nullptr;
    const base::Clock* clock = nullptr;
    int num_nodes = 0;  // at least 2
    // Identity of the exchanges; phases [phase, phase + 3) are the probe's.
    uint64_t job = 0;
    Generation generation = {};
    uint32_t phase = 0;
  };
  // Once, never from inside Start; may release the probe.
  using Done = absl::AnyInvocable<void(absl::StatusOr<LinkCost>) &&>;

  static absl::StatusOr<std::unique_ptr<LinkProbe>> Start(const Parts& parts,
                                                          Done done);

 private:
  struct Try {
    std::unique_ptr<Exchange> exchange;
    double seconds = 0;  // the quickest
  };

  LinkProbe(const Parts& parts, Done done);
  absl::Status Prepare(const std::vector<int>& to, const std::vector<int>& from,
                       size_t bytes);
  absl::Status PostNext();
  void OnExchangeDone(Exchange* exchange, Step step,
                      const absl::Status& status) override;
  double CopySeconds();
  LinkCost Result();

  const Parts parts_;
  Done done_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
  std::vector<Try> tries_;  // in the order above
  size_t current_ = 0;
  Step step_;
  absl::Time posted_;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_ROUTED_LINK_PROBE_H_
