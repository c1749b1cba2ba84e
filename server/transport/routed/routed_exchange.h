// One exchange in rounds; routed_transport.h says what for.
//
// Threading: control thread only.
#ifndef SERVER_TRANSPORT_ROUTED_ROUTED_EXCHANGE_H_
#define SERVER_TRANSPORT_ROUTED_ROUTED_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/ids.h"
#include "server/transport/routed/routes.h"
#include "server/transport/routed/turn_memory.h"
#include "server/transport/transport.h"

namespace ballast::transport {

class RoutedExchange final : public Exchange, private ExchangeObserver {
 public:
  // `spec` has a pattern, and phases with (round << kRoundShift) added are
  // free. Borrows transport and observer; `memory` is of those that take turns
  // with it, and not needed afterwards.
  static absl::StatusOr<std::unique_ptr<RoutedExchange>> Create(
      Transport* transport, const std::vector<Round>& rounds,
      const ExchangeSpec& spec, TurnMemory* memory, ExchangeObserver* observer);

  absl::Status Post(Step step) override;
  void Cancel() override;
  bool is_posted() const override { return is_posted_; }
  const ByteCounters& counters() const override;

 private:
  struct Copy {
    std::span<const std::byte> from;
    std::span<std::byte> to;
  };
  struct Stage {
    std::vector<Copy> pack;  // before it is posted
    std::unique_ptr<Exchange> exchange;
    std::vector<Copy> unpack;  // when it is done
  };
  class Planner;

  explicit RoutedExchange(ExchangeObserver* observer) : observer_(observer) {}

  absl::Status PostStage();
  void OnExchangeDone(Exchange* exchange, Step step,
                      const absl::Status& status) override;

  ExchangeObserver* const observer_;
  std::vector<TurnMemory::Block> memory_;
  std::vector<Stage> stages_;  // at least one
  size_t next_ = 0;            // the stage that is posted
  Step step_;
  bool is_posted_ = false;
  mutable ByteCounters counters_;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_ROUTED_ROUTED_EXCHANGE_H_
