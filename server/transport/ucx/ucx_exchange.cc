#include "server/transport/ucx/ucx_exchange.h"

#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"
#include "server/transport/ucx/ucx_transport.h"

namespace ballast::transport {

UcxExchange::UcxExchange(UcxTransport* transport, PreparedExchange* prepared,
                         ExchangeObserver* observer)
    : transport_(transport),
      prepared_(prepared),
      id_(prepared->id),
      observer_(observer) {}

UcxExchange::~UcxExchange() {
  transport_->exchanges_.erase(id_);
  transport_->protocol_.Release(prepared_);
}

absl::Status UcxExchange::Post(Step step) {
  if (is_posted()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a step is posted, cannot post step ", step.value()));
  }
  ASSIGN_OR_RETURN(post_, transport_->protocol_.Post(
                              prepared_, step, transport_->clock_->Now()));
  transport_->Nudge();
  return absl::OkStatus();
}

void UcxExchange::Cancel() {
  post_ = 0;
  transport_->protocol_.Cancel(prepared_);
}

const ByteCounters& UcxExchange::counters() const {
  counters_ = transport_->protocol_.CountersOf(prepared_);
  return counters_;
}

void UcxExchange::OnCompletion(const Completion& completion) {
  if (post_ == 0 || completion.post != post_) return;
  post_ = 0;
  observer_->OnExchangeDone(this, completion.step, completion.status);
}

}  // namespace ballast::transport
