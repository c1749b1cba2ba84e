// One prepared exchange of a UcxTransport: the control thread's side of a
// PreparedExchange.
//
// Threading: control thread only.
#ifndef SERVER_TRANSPORT_UCX_UCX_EXCHANGE_H_
#define SERVER_TRANSPORT_UCX_UCX_EXCHANGE_H_

#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/base/ids.h"
#include "server/transport/transport.h"
#include "server/transport/ucx/exchange_table.h"

namespace ballast::transport {

class UcxTransport;

class UcxExchange final : public Exchange {
 public:
  // `transport` and `observer` outlive the exchange.
  UcxExchange(UcxTransport* transport, PreparedExchange* prepared,
              ExchangeObserver* observer);
  ~UcxExchange() override;

  absl::Status Post(Step step) override;
  void Cancel() override;
  bool is_posted() const override { return post_ != 0; }
  const ByteCounters& counters() const override;

  // Tells the observer, unless that Post was cancelled. The exchange may be
  // gone when this returns.
  void OnCompletion(const Completion& completion);

  uint64_t id() const { return id_; }

 private:
  UcxTransport* const transport_;
  PreparedExchange* const prepared_;
  const uint64_t id_;
  ExchangeObserver* const observer_;
  uint64_t post_ = 0;              // 0: none
  mutable ByteCounters counters_;  // as of the last look
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_UCX_EXCHANGE_H_
