#include "server/collective/value_coder.h"

namespace ballast::collective {
namespace {

class ValueCoder final : public ChunkCoder {
 public:
  explicit ValueCoder(Context* context) : context_(context) {}

  int64_t header_bytes() const override { return 0; }

  absl::Status Encode(int thread, Step step, const ChunkId&,
                      const CodedChunk& chunk, std::byte* slice,
                      std::span<ErrorSums> errors) const override {
    for (size_t i = 0; i < chunk.runs.size(); ++i) {
      const CodedRun& coded = chunk.runs[i];
      const float* const master = context_->MasterOf(*coded.piece);
      const Run run = context_->WeightRunOf(coded, step);
      coded.codec->Encode(run, master, slice + coded.offset);
      context_->Meter(layout::Path::kWeights, coded, run, step, master, master,
                      master, &errors[i]);
      DecodeRun(thread, coded, slice);
    }
    return absl::OkStatus();
  }

  absl::Status Decode(int thread, Step, const ChunkId&, const CodedChunk& chunk,
                      const std::byte* slice) const override {
    for (const CodedRun& coded : chunk.runs) DecodeRun(thread, coded, slice);
    return absl::OkStatus();
  }

  // Never asked for: Decode finds nothing.
  uint64_t Told(const CodedChunk&, const std::byte*) const override {
    return 0;
  }

 private:
  void DecodeRun(int thread, const CodedRun& coded,
                 const std::byte* slice) const {
    const layout::Piece& piece = *coded.piece;
    float* const decoded = context_->threads[thread].scratch.data();
    coded.codec->Decode(piece.size(), slice + coded.offset, decoded);
    context_->parts.kernels->cast(decoded, context_->dtype(piece), piece.size(),
                                  context_->WeightsOf(piece));
  }

  Context* const context_;
};

}  // namespace

std::unique_ptr<ChunkCoder> MakeValueCoder(Context* context) {
  return std::make_unique<ValueCoder>(context);
}

}  // namespace ballast::collective
