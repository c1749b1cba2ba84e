// Hops 3 and 4 of one bucket: the bytes of each owner's slice of the published
// weights to every node, received in place. A shard is one byte range of the
// segment (server/layout), so that one part per peer carries it, alignment
// gaps between tensors included.
//
// Threading: control thread only.
#ifndef SERVER_COLLECTIVE_BUCKET_PUBLISHER_H_
#define SERVER_COLLECTIVE_BUCKET_PUBLISHER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/ids.h"
#include "server/collective/bucket_operation.h"
#include "server/collective/context.h"
#include "server/transport/transport.h"

namespace ballast::collective {

class BucketPublisher final : public BucketOperation,
                              private transport::ExchangeObserver {
 public:
  static absl::StatusOr<std::unique_ptr<BucketPublisher>> Create(
      Context* context, BucketId bucket);

  absl::Status Start(Step step) override;
  void Cancel() override;

  uint64_t payload_sent() const override { return payload_sent_; }
  const transport::Exchange* exchange() const override {
    return exchange_.get();
  }

 private:
  BucketPublisher(Context* context, BucketId bucket);

  absl::Status PrepareExchange();
  std::span<std::byte> BytesOf(const layout::Shard& shard) const;
  void OnExchangeDone(transport::Exchange* exchange, Step step,
                      const absl::Status& status) override;

  Context* const context_;
  const BucketId bucket_;
  std::unique_ptr<transport::Exchange> exchange_;  // null with one node
  EmptyTask done_;                                 // reports with one node
  uint64_t payload_per_exchange_ = 0;
  uint64_t payload_sent_ = 0;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_BUCKET_PUBLISHER_H_
