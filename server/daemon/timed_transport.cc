#include "server/daemon/timed_transport.h"

#include <utility>

#include "absl/time/time.h"
#include "server/base/status_macros.h"
#include "server/collective/parts.h"

namespace ballast::daemon {
namespace {

class TimedExchange final : public transport::Exchange,
                            private transport::ExchangeObserver {
 public:
  static absl::StatusOr<std::unique_ptr<TimedExchange>> Create(
      transport::Transport* transport, const transport::ExchangeSpec& spec,
      transport::ExchangeObserver* observer, const base::Clock* clock,
      metrics::Histogram* histogram) {
    std::unique_ptr<TimedExchange> exchange(
        new TimedExchange(observer, clock, histogram));
    ASSIGN_OR_RETURN(exchange->inner_,
                     transport->Prepare(spec, exchange.get()));
    return exchange;
  }

  absl::Status Post(Step step) override {
    posted_ = clock_->Now();
    return inner_->Post(step);
  }
  void Cancel() override { inner_->Cancel(); }
  bool is_posted() const override { return inner_->is_posted(); }
  const transport::ByteCounters& counters() const override {
    return inner_->counters();
  }

 private:
  TimedExchange(transport::ExchangeObserver* observer, const base::Clock* clock,
                metrics::Histogram* histogram)
      : observer_(observer), clock_(clock), histogram_(histogram) {}

  void OnExchangeDone(transport::Exchange*, Step step,
                      const absl::Status& status) override {
    if (status.ok()) {
      histogram_->Observe(absl::ToDoubleSeconds(clock_->Now() - posted_));
    }
    observer_->OnExchangeDone(this, step, status);  // may release this
  }

  transport::ExchangeObserver* const observer_;
  const base::Clock* const clock_;
  metrics::Histogram* const histogram_;
  std::unique_ptr<transport::Exchange> inner_;
  absl::Time posted_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<transport::Exchange>> TimedTransport::Prepare(
    const transport::ExchangeSpec& spec,
    transport::ExchangeObserver* observer) {
  const auto histogram = histograms_.find(collective::PhaseOf(spec.phase));
  if (histogram == histograms_.end()) return inner_->Prepare(spec, observer);
  ASSIGN_OR_RETURN(
      std::unique_ptr<transport::Exchange> exchange,
      TimedExchange::Create(inner_, spec, observer, clock_, histogram->second));
  return exchange;
}

}  // namespace ballast::daemon
