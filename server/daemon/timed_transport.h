// A transport that measures how long its exchanges take, by phase, and knows
// whether one of these is under way; all else is the other transport's.
//
// Threading: control thread only.
// Lifetime: borrows all parts.
#ifndef SERVER_DAEMON_TIMED_TRANSPORT_H_
#define SERVER_DAEMON_TIMED_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "server/base/clock.h"
#include "server/metrics/metrics.h"
#include "server/transport/transport.h"

namespace ballast::daemon {

class TimedTransport final : public transport::Transport {
 public:
  // Seconds per exchange, by the collective's phase, whatever the batch;
  // phases that are not named are not looked at; null: not measured.
  using Histograms = absl::flat_hash_map<uint32_t, metrics::Histogram*>;

  TimedTransport(transport::Transport* inner, const base::Clock* clock,
                 Histograms histograms)
      : inner_(inner), clock_(clock), histograms_(std::move(histograms)) {}

  const transport::Capabilities& capabilities() const override {
    return inner_->capabilities();
  }
  NodeRank self() const override { return inner_->self(); }
  absl::StatusOr<std::unique_ptr<transport::Exchange>> Prepare(
      const transport::ExchangeSpec& spec,
      transport::ExchangeObserver* observer) override;

  // Exchanges of the named phases that are posted and not done.
  int num_posted() const { return num_posted_; }

 private:
  transport::Transport* const inner_;
  const base::Clock* const clock_;
  const Histograms histograms_;
  int num_posted_ = 0;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_TIMED_TRANSPORT_H_
