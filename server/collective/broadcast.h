// All weights from one node to all others, at start-up and when they are
// replaced: the whole segment in
// parts of a few megabytes, received in place. Where weights are not resident,
// each owner gets its part of each unit and nothing else.
//
// Threading: control thread only.
#ifndef SERVER_COLLECTIVE_BROADCAST_H_
#define SERVER_COLLECTIVE_BROADCAST_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "server/base/ids.h"
#include "server/collective/context.h"
#include "server/transport/transport.h"

namespace ballast::collective {

class Broadcast final : private transport::ExchangeObserver {
 public:
  explicit Broadcast(Context* context);

  // Not before the last one reported. An error is reported here and not to the
  // observer.
  absl::Status Start(NodeRank root, Step step);
  void Cancel();

  const std::vector<std::unique_ptr<transport::Exchange>>& exchanges() const {
    return exchanges_;
  }

 private:
  absl::Status Prepare(NodeRank root);
  absl::Status PrepareSegment(NodeRank root);
  absl::Status PrepareUnits(NodeRank root);
  absl::Status Add(const transport::ExchangeSpec& spec);
  absl::Status PreparePart(NodeRank root, std::span<std::byte> bytes);
  void OnExchangeDone(transport::Exchange* exchange, Step step,
                      const absl::Status& status) override;

  Context* const context_;
  EmptyTask done_;  // reports when there is nothing to move
  std::vector<std::unique_ptr<transport::Exchange>> exchanges_;
  std::optional<NodeRank> root_;  // of exchanges_
  size_t num_left_ = 0;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_BROADCAST_H_
