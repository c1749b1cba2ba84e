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
      metrics::Histogram* histogram, int* num_posted) {
    std::unique_ptr<TimedExchange> exchange(
        new TimedExchange(observer, clock, histogram, num_posted));
    ASSIGN_OR_RETURN(exchange->inner_,
                     transport->Prepare(spec, exchange.get()));
    return exchange;
  }

  ~TimedExchange() override { SetPosted(false); }

  absl::Status Post(Step step) override {
    posted_ = clock_->Now();
    RETURN_IF_ERROR(inner_->Post(step));
    SetPosted(true);
    return absl::OkStatus();
  }
  void Cancel() override {
    SetPosted(false);
    inner_->Cancel();
  }
  bool is_posted() const override { return inner_->is_posted(); }
  const transport::ByteCounters& counters() const override {
    return inner_->counters();
  }

 private:
  TimedExchange(transport::ExchangeObserver* observer, const base::Clock* clock,
                metrics::Histogram* histogram, int* num_posted)
      : observer_(observer),
        clock_(clock),
        histogram_(histogram),
        num_posted_(num_posted) {}

  void SetPosted(bool is_posted) {
    *num_posted_ += static_cast<int>(is_posted) - static_cast<int>(counts_);
    counts_ = is_posted;
  }

  void OnExchangeDone(transport::Exchange*, Step step,
                      const absl::Status& status) override {
    SetPosted(false);
    if (status.ok() && histogram_ != nullptr) {
      histogram_->Observe(absl::ToDoubleSeconds(clock_->Now() - posted_));
    }
    observer_->OnExchangeDone(this, step, status);  // may release this
  }

  transport::ExchangeObserver* const observer_;
  const base::Clock* const clock_;
  metrics::Histogram* const histogram_;
  int* const num_posted_;
  bool counts_ = false;  // in it
  std::unique_ptr<transport::Exchange> inner_;
  absl::Time posted_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<transport::Exchange>> TimedTransport::Prepare(
    const transport::ExchangeSpec& spec,
    transport::ExchangeObserver* observer) {
  const auto histogram = histograms_.find(collective::PhaseOf(spec.phase));
  if (histogram == histograms_.end()) return inner_->Prepare(spec, observer);
  ASSIGN_OR_RETURN(std::unique_ptr<transport::Exchange> exchange,
                   TimedExchange::Create(inner_, spec, observer, clock_,
                                         histogram->second, &num_posted_));
  return exchange;
}

}  // namespace ballast::daemon
