// Hops 3 and 4 of one bucket when weights are quantized between nodes.
//
//   each own chunk:   encode the fp32 masters into the own slice, decode it
//                     again, cast -> own segment
//   exchange          the own slice to all, each owner's slice from it
//   other chunks:     decode the same bytes, cast -> own segment
//
// So every node, the owner too, publishes the decoded form (I25); nobody ever
// sees the cast of a master. Tensors without a codec go in their own dtype.
//
// Threading: control thread; chunks are tasks of the pool, made once.
#ifndef SERVER_COLLECTIVE_CODED_PUBLISHER_H_
#define SERVER_COLLECTIVE_CODED_PUBLISHER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/ids.h"
#include "server/collective/bucket_operation.h"
#include "server/collective/chunk_task.h"
#include "server/collective/coded_slice.h"
#include "server/collective/context.h"
#include "server/collective/error_sums.h"
#include "server/transport/transport.h"

namespace ballast::collective {

class CodedPublisher final : public BucketOperation,
                             private transport::ExchangeObserver {
 public:
  static int64_t WindowBytes(const Context& context, BucketId bucket);

  // `window` is in use from Start to the report, or to Cancel and an idle gate.
  static absl::StatusOr<std::unique_ptr<CodedPublisher>> Create(
      Context* context, BucketId bucket, std::span<std::byte> window);

  absl::Status Start(Step step) override;
  void Cancel() override { exchange_->Cancel(); }
  uint64_t payload_sent() const override { return payload_sent_; }
  const transport::Exchange* exchange() const override {
    return exchange_.get();
  }
  ErrorSums errors() const override { return errors_; }

 private:
  CodedPublisher(Context* context, BucketId bucket);

  absl::Status PrepareExchange(std::span<std::byte> window);
  void MakeTasks();
  void OnEncoded();
  void OnDecoded();
  void OnExchangeDone(transport::Exchange* exchange, Step step,
                      const absl::Status& status) override;

  // On pool threads.
  void EncodeChunk(int thread, std::span<const CodedRun> runs, std::byte* slice,
                   ErrorSums* errors);
  void DecodeRun(int thread, const CodedRun& coded, const std::byte* slice);

  Context* const context_;
  const layout::Bucket& bucket_;
  std::vector<CodedSlice> slices_;           // by owner
  std::vector<std::span<std::byte>> bytes_;  // encoded, by owner
  std::unique_ptr<transport::Exchange> exchange_;
  uint64_t payload_per_exchange_ = 0;

  std::vector<ChunkTask> encode_tasks_;  // never moved once made
  std::vector<ChunkTask> decode_tasks_;
  std::vector<ErrorSums> encode_errors_;  // by task
  Step step_;
  size_t num_left_ = 0;  // tasks of the running hop
  uint64_t payload_sent_ = 0;
  ErrorSums errors_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CODED_PUBLISHER_H_
