#include "server/collective/delta_coder.h"

#include <cstring>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/kernels.h"
#include "server/base/failpoint.h"

namespace ballast::collective {
namespace {

// kernels/FORMAT.md 9. A chunk is computed beside the published weights and
// goes over them in one copy, once its checksum is known to be right.
struct Header {  // on the wire, little-endian
  uint64_t before = 0;
  uint64_t after = 0;
};
static_assert(sizeof(Header) == 16);
// In place of `before`. One of 2^64 checksums is this too: its chunk goes the
// long way, with the same bits.
constexpr uint64_t kGone = 0;

class DeltaCoder final : public ChunkCoder {
 public:
  explicit DeltaCoder(Context* context)
      : context_(context), published_(context->parts.published) {}

  int64_t header_bytes() const override { return sizeof(Header); }

  absl::Status Encode(int thread, Step step, const ChunkId& id,
                      const CodedChunk& chunk, std::byte* slice,
                      std::span<ErrorSums> errors) const override {
    Header header;
    const PublishedChunks::Entry& entry = published_->entry(id);
    if (entry.version == WeightVersion(step.value())) {
      header = {kGone, entry.checksum};
      std::memcpy(slice + chunk.offset, &header, sizeof(header));
      return absl::OkStatus();
    }
    absl::Status status = CheckCopy(id, &header.before);
    if (!status.ok()) return status;
    for (size_t i = 0; i < chunk.runs.size(); ++i) {
      EncodeRun(thread, step, chunk.runs[i], slice, &errors[i]);
    }
    header.after = Apply(thread, chunk, slice);
    std::memcpy(slice + chunk.offset, &header, sizeof(header));
    Write(thread, step, id, chunk, header.after);
    return absl::OkStatus();
  }

  absl::Status Decode(int thread, Step step, const ChunkId& id,
                      const CodedChunk& chunk,
                      const std::byte* slice) const override {
    Header header;
    std::memcpy(&header, slice + chunk.offset, sizeof(header));
    const PublishedChunks::Entry& entry = published_->entry(id);
    if (entry.version == WeightVersion(step.value())) {
      if (entry.checksum == header.after) return absl::OkStatus();
      return Bad(
          ChunkFault::kResult, id, entry.checksum, header.after,
          absl::StrCat("version ", step.value(), " here is not that of node ",
                       context_->NodeOf(id.owner).value(), ", its owner"));
    }
    if (header.before == kGone) {
      return absl::NotFoundError(
          absl::StrCat(published_->Describe(id), ": node ",
                       context_->NodeOf(id.owner).value(), " has version ",
                       step.value(), " and its difference no more"));
    }
    uint64_t before = 0;
    absl::Status status = CheckCopy(id, &before);
    if (!status.ok()) return status;
    if (before != header.before) {
      return Bad(
          ChunkFault::kReference, id, before, header.before,
          absl::StrCat("version ", published_->entry(id).version.value(),
                       " here is not that of node ",
                       context_->NodeOf(id.owner).value(), ", its owner"));
    }
    const uint64_t after = Apply(thread, chunk, slice);
    if (after != header.after) {
      return Bad(ChunkFault::kResult, id, after, header.after,
                 absl::StrCat("what node ", context_->NodeOf(id.owner).value(),
                              " sent for version ", step.value(),
                              " does not give its result"));
    }
    Write(thread, step, id, chunk, after);
    return absl::OkStatus();
  }

  uint64_t Told(const CodedChunk& chunk,
                const std::byte* slice) const override {
    Header header;
    std::memcpy(&header, slice + chunk.offset, sizeof(header));
    return header.after;
  }

 private:
  bool IsDelta(const layout::Piece& piece) const {
    return context_->parts.plan->codecs(piece.tensor).weights.quantizes();
  }
  size_t BytesOf(const layout::Piece& piece) const {
    return piece.size() * kernels::SizeOf(context_->dtype(piece));
  }

  absl::Status Bad(ChunkFault fault, const ChunkId& id, uint64_t is,
                   uint64_t should_be, const std::string& what) const {
    published_->Count(fault);
    return absl::DataLossError(absl::StrFormat(
        "%s: %s (checksum %016x instead of %016x); nothing was written",
        published_->Describe(id), what, is, should_be));
  }

  // Reads the published bits; they are used from the cache then.
  absl::Status CheckCopy(const ChunkId& id, uint64_t* checksum) const {
    *checksum = published_->Checksum(id, context_->parts.weights);
    const PublishedChunks::Entry& entry = published_->entry(id);
    if (*checksum == entry.checksum ||
        BALLAST_SABOTAGED("collective.delta_unverified")) {
      return absl::OkStatus();
    }
    return Bad(ChunkFault::kCopy, id, *checksum, entry.checksum,
               absl::StrCat("version ", entry.version.value(),
                            " has changed in the memory of node ",
                            context_->parts.node.value()));
  }

  void EncodeRun(int thread, Step step, const CodedRun& coded, std::byte* slice,
                 ErrorSums* errors) const {
    const layout::Piece& piece = *coded.piece;
    const float* const master = context_->MasterOf(piece);
    const float* values = master;
    const float* delta = master;  // of a tensor that will have a codec again
    const bool is_narrower_tried =
        context_->narrower_codec(layout::Path::kWeights, piece.tensor) !=
        nullptr;
    if (IsDelta(piece) || is_narrower_tried) {
      float* const out = context_->threads[thread].scratch.data();
      context_->parts.kernels->subtract(master, context_->WeightsOf(piece),
                                        context_->dtype(piece), piece.size(),
                                        out);
      delta = out;
    }
    if (IsDelta(piece)) values = delta;
    const Run run = context_->WeightRunOf(coded, step);
    coded.codec->Encode(run, values, slice + coded.offset);
    context_->Meter(layout::Path::kWeights, coded, run, step, values, delta,
                    master, errors);
  }

  // The chunk's new bits, piece after piece, into the thread's memory; returns
  // their checksum.
  uint64_t Apply(int thread, const CodedChunk& chunk,
                 const std::byte* slice) const {
    const ThreadPointers& own = context_->threads[thread];
    const kernels::Kernels& kernels = *context_->parts.kernels;
    std::byte* out = own.chunk.data();
    uint64_t checksum = 0;
    for (const CodedRun& coded : chunk.runs) {
      const layout::Piece& piece = *coded.piece;
      const kernels::DType dtype = context_->dtype(piece);
      // What needs no cast is computed where it stays.
      const bool is_cast = dtype != kernels::DType::kFloat32;
      float* const values =
          is_cast ? own.scratch.data() : reinterpret_cast<float*>(out);
      if (IsDelta(piece)) {
        kernels.reference(context_->WeightsOf(piece), dtype, piece.size(),
                          values);
        coded.codec->DecodeAdd(piece.size(), slice + coded.offset, values);
      } else {
        coded.codec->Decode(piece.size(), slice + coded.offset, values);
      }
      if (is_cast) kernels.cast(values, dtype, piece.size(), out);
      checksum = ExtendChecksum(checksum, {out, BytesOf(piece)});
      out += PadBytes(BytesOf(piece));
    }
    return checksum;
  }

  void Write(int thread, Step step, const ChunkId& id, const CodedChunk& chunk,
             uint64_t checksum) const {
    const std::byte* from = context_->threads[thread].chunk.data();
    BALLAST_FAILPOINT("collective.delta_computed");
    for (const CodedRun& coded : chunk.runs) {
      const size_t size = BytesOf(*coded.piece);
      std::memcpy(context_->WeightsOf(*coded.piece), from, size);
      from += PadBytes(size);
      // A chunk that is taken for good as far as it was written.
      if (BALLAST_SABOTAGED("collective.delta_in_place")) {
        published_->Set(id, {published_->Checksum(id, context_->parts.weights),
                             published_->entry(id).version});
      }
      BALLAST_FAILPOINT("collective.delta_written");
    }
    published_->Set(id, {checksum, WeightVersion(step.value())});
  }

  Context* const context_;
  PublishedChunks* const published_;
};

}  // namespace

std::unique_ptr<ChunkCoder> MakeDeltaCoder(Context* context) {
  return std::make_unique<DeltaCoder>(context);
}

}  // namespace ballast::collective
