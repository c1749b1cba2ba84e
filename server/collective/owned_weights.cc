#include "server/collective/owned_weights.h"

#include <algorithm>
#include <cstring>

#include "server/base/failpoint.h"
#include "server/base/status_macros.h"
#include "server/collective/codec_registry.h"
#include "server/collective/windows.h"

namespace ballast::collective {

absl::StatusOr<std::unique_ptr<OwnedWeights>> OwnedWeights::Create(
    const Parts& parts, const layout::GatherUnits* units) {
  auto owned = std::unique_ptr<OwnedWeights>(new OwnedWeights(parts, units));
  RETURN_IF_ERROR(owned->Allocate());
  if (parts.plan != nullptr && parts.plan->quantizes_weights()) {
    RETURN_IF_ERROR(owned->PlanSlices());
  }
  return owned;
}

absl::Status OwnedWeights::Allocate() {
  uint64_t raw = 0;
  uint64_t frozen = 0;
  for (int u = 0; u < units_->size(); ++u) {
    uint64_t& end = units_->is_frozen(u) ? frozen : raw;
    raw_offsets_.push_back(end);
    end += PadBytes(static_cast<int64_t>(units_->unit(u).parts[self()].size()));
  }
  device::Device* const device = context_.parts.device;
  if (raw > 0) {
    ASSIGN_OR_RETURN(raw_,
                     device->AllocateShared(raw, "owned shards of weights"));
  }
  if (frozen > 0) {
    ASSIGN_OR_RETURN(
        frozen_, device->AllocateShared(frozen, "owned parts of frozen ones"));
  }
  return absl::OkStatus();
}

absl::Status OwnedWeights::PlanSlices() {
  const Parts& parts = context_.parts;
  for (size_t i = 0; i < parts.layout->tensors().size(); ++i) {
    const TensorId id(static_cast<int32_t>(i));
    context_.weight_codecs.push_back(MakeCodec(parts.plan->codecs(id).weights,
                                               parts.layout->tensor(id).dtype,
                                               parts.kernels));
  }
  // No error budget changes them (layout/policy.h).
  context_.narrower_weight_codecs.resize(parts.layout->tensors().size());
  uint64_t coded = 0;
  for (const layout::Bucket& bucket : parts.layout->buckets()) {
    std::vector<CodedSlice>& slices = slices_.emplace_back();
    for (const layout::Shard& shard : bucket.shards) {
      slices.push_back(PlanSlice(shard, context_.weight_codecs));
    }
    coded_offsets_.push_back(coded);
    coded += PadBytes(slices[self()].bytes);
  }
  for (size_t b = 0; b < slices_.size(); ++b) {
    for (const CodedChunk& chunk : slices_[b][self()].chunks) {
      own_chunks_.push_back({&chunk, coded_offsets_[b]});
    }
  }
  is_coded_.resize(units_->size());
  if (coded > 0) {
    ASSIGN_OR_RETURN(coded_, parts.device->AllocateShared(
                                 coded, "owned shards of weights, encoded"));
  }
  const int64_t run =
      PadBytes(FindLongestChunk(*parts.layout).run * sizeof(float));
  ASSIGN_OR_RETURN(scratch_,
                   parts.device->AllocatePrivate(
                       std::max<int64_t>(1, run) * context_.threads.size(),
                       "runs after they are decoded"));
  std::span<std::byte> rest = scratch_->bytes();
  for (ThreadPointers& thread : context_.threads) {
    thread.scratch = {reinterpret_cast<float*>(rest.data()),
                      run / sizeof(float)};
    rest = rest.subspan(run);
  }
  return absl::OkStatus();
}

std::span<std::byte> OwnedWeights::raw_buckets() {
  return raw_ == nullptr ? std::span<std::byte>() : raw_->bytes();
}

std::vector<int64_t> OwnedWeights::shifts() const {
  std::vector<int64_t> shifts;
  for (const layout::Bucket& bucket : context_.parts.layout->buckets()) {
    const int unit = bucket.id.value();
    shifts.push_back(
        static_cast<int64_t>(raw_offsets_[unit]) -
        static_cast<int64_t>(units_->unit(unit).parts[self()].begin));
  }
  return shifts;
}

std::span<std::byte> OwnedWeights::Raw(int unit) {
  device::SharedBuffer* const buffer =
      units_->is_frozen(unit) ? frozen_.get() : raw_.get();
  if (buffer == nullptr) return {};
  return buffer->bytes().subspan(raw_offsets_[unit],
                                 units_->unit(unit).parts[self()].size());
}

void OwnedWeights::CopyFrom(std::span<const std::byte> segment) {
  for (int u = 0; u < units_->size(); ++u) {
    const layout::ByteRange& part = units_->unit(u).parts[self()];
    if (part.empty()) continue;
    std::memcpy(Raw(u).data(), segment.data() + part.begin, part.size());
  }
}

void OwnedWeights::Restore(bool is_coded) {
  if (!codes() || !is_coded ||
      BALLAST_SABOTAGED("collective.codes_forgotten")) {
    return;
  }
  for (size_t b = 0; b < slices_.size(); ++b) {
    SetCoded(BucketId(static_cast<int32_t>(b)));
  }
  DropRaw();
}

void OwnedWeights::SetCoded(BucketId bucket) {
  if (is_coded_[bucket.value()]) return;
  is_coded_[bucket.value()] = true;
  ++num_coded_;
}

// Its name may be kept, so its memory is given back by itself.
void OwnedWeights::DropRaw() {
  if (raw_ == nullptr) return;
  raw_->Discard(0, raw_->size_bytes());
  raw_.reset();
  BALLAST_FAILPOINT("collective.raw_dropped");
}

uint64_t OwnedWeights::size_bytes() const {
  uint64_t bytes = 0;
  for (const auto* buffer : {&raw_, &frozen_, &coded_}) {
    if (*buffer != nullptr) bytes += (*buffer)->size_bytes();
  }
  if (scratch_ != nullptr) bytes += scratch_->size_bytes();
  return bytes;
}

uint64_t OwnedWeights::PartBytes(int unit, int owner) const {
  return is_coded(unit) ? slices_[unit][owner].bytes
                        : units_->unit(unit).parts[owner].size();
}

uint64_t OwnedWeights::PartPayload(int unit, int owner) const {
  return is_coded(unit) ? PayloadOf(slices_[unit][owner].chunks)
                        : units_->unit(unit).payload(owner);
}

std::span<const std::byte> OwnedWeights::Served(int unit) {
  if (!is_coded(unit)) return Raw(unit);
  if (coded_ == nullptr) return {};
  return coded_->bytes().subspan(coded_offsets_[unit],
                                 slices_[unit][self()].bytes);
}

size_t OwnedWeights::num_chunks(BucketId bucket, int owner) const {
  return context_.bucket(bucket).shards[owner].chunks.size();
}

void OwnedWeights::EncodeChunk(Step step, BucketId bucket, size_t chunk,
                               std::span<ErrorSums> errors) {
  std::byte* const slice =
      coded_->bytes().data() + coded_offsets_[bucket.value()];
  const std::span<const CodedRun> runs = OwnRuns(bucket, chunk);
  for (size_t i = 0; i < runs.size(); ++i) {
    const float* const master = context_.MasterOf(*runs[i].piece);
    const Run run = context_.WeightRunOf(runs[i], step);
    runs[i].codec->Encode(run, master, slice + runs[i].offset);
    context_.Meter(layout::Path::kWeights, runs[i], run, step, master, master,
                   master, &errors[i]);
  }
}

std::span<const CodedRun> OwnedWeights::OwnRuns(BucketId bucket,
                                                size_t chunk) const {
  return slices_[bucket.value()][self()].chunks[chunk].runs;
}

void OwnedWeights::DecodeChunk(int thread, BucketId bucket, int owner,
                               size_t chunk, const std::byte* part,
                               std::byte* segment) const {
  for (const CodedRun& coded :
       slices_[bucket.value()][owner].chunks[chunk].runs) {
    const layout::Piece& piece = *coded.piece;
    DecodeRun(coded, part, context_.threads[thread].scratch.data(),
              segment +
                  context_.parts.layout->place(piece.tensor).weight_offset +
                  piece.begin * kernels::SizeOf(context_.dtype(piece)));
  }
}

void OwnedWeights::DecodeOwn(int64_t chunk, size_t run,
                             std::span<float> scratch,
                             std::span<std::byte> into) const {
  const OwnChunk& own = own_chunks_[chunk];
  DecodeRun(own.coded->runs[run], coded_->bytes().data() + own.slice_offset,
            scratch.data(), into.data());
}

void OwnedWeights::DecodeRun(const CodedRun& coded, const std::byte* slice,
                             float* decoded, std::byte* into) const {
  const layout::Piece& piece = *coded.piece;
  coded.codec->Decode(piece.size(), slice + coded.offset, decoded);
  context_.parts.kernels->cast(decoded, context_.dtype(piece), piece.size(),
                               into);
}

}  // namespace ballast::collective
