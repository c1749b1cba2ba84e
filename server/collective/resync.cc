#include "server/collective/resync.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/dtype.h"

namespace ballast::collective {
namespace {

absl::Status Bad(const std::string& what, const std::string& why) {
  return absl::DataLossError(absl::StrCat(what, ": ", why));
}

}  // namespace

bool Resync::IsDue(const layout::ExchangePolicy& policy, BucketId bucket,
                   Step step) {
  return (step.value() + bucket.value()) % policy.resync_every_steps == 0;
}

int64_t Resync::WindowBytes(const Context& context, BucketId bucket) {
  int64_t bytes = 0;
  for (const layout::Shard& shard : context.bucket(bucket).shards) {
    if (shard.owner.value() == context.self()) continue;
    bytes += PadBytes(context.WeightsOf(shard).size());
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<Resync>> Resync::Create(
    Context* context, BucketId bucket, std::span<std::byte> window) {
  auto resync = std::unique_ptr<Resync>(new Resync(context, bucket));
  absl::Status status = resync->Prepare(window);
  if (!status.ok()) return status;
  return resync;
}

Resync::Resync(Context* context, BucketId bucket)
    : context_(context),
      bucket_(context->bucket(bucket)),
      published_(context->parts.published),
      pipeline_(context,
                [this] { context_->observer->OnBucketCompared(bucket_.id); }) {}

absl::Status Resync::Prepare(std::span<std::byte> window) {
  BatchPipeline::BatchParts parts{
      .spec = context_->Spec(kResyncPhase, bucket_.id, 0)};
  const layout::Shard& own = context_->own_shard(bucket_.id);
  for (size_t i = 0; i < own.chunks.size(); ++i) {
    const ChunkId id{bucket_.id, own.owner, i};
    parts.before.push_back({[this, id](int) { return CheckOwn(id); }, id});
  }
  for (const layout::Shard& shard : bucket_.shards) {
    if (shard.owner == own.owner) continue;
    if (!own.pieces.empty()) {
      parts.spec.sends.push_back(
          {context_->NodeOf(shard.owner), context_->WeightsOf(own)});
    }
    const size_t size = context_->WeightsOf(shard).size();
    if (size == 0) continue;
    parts.spec.receives.push_back(
        {context_->NodeOf(shard.owner), window.first(size)});
    for (size_t i = 0; i < shard.chunks.size(); ++i) {
      const ChunkId id{bucket_.id, shard.owner, i};
      parts.after.push_back({[this, id, &shard, received = window.data()](int) {
                               return Compare(id, shard, received);
                             },
                             id});
    }
    window = window.subspan(PadBytes(size));
  }
  return pipeline_.Add(std::move(parts));
}

absl::Status Resync::CheckOwn(const ChunkId& id) {
  const PublishedChunks::Entry& entry = published_->entry(id);
  if (published_->Checksum(id, context_->parts.weights) == entry.checksum) {
    return absl::OkStatus();
  }
  published_->Count(ChunkFault::kCopy);
  return Bad(published_->Describe(id),
             absl::StrCat("version ", entry.version.value(),
                          " has changed in the memory of node ",
                          context_->parts.node.value(), "; nothing was sent"));
}

absl::Status Resync::Compare(const ChunkId& id, const layout::Shard& shard,
                             const std::byte* received) {
  const std::byte* const begin = context_->WeightsOf(shard).data();
  const auto size_of = [this](const layout::Piece& piece) -> size_t {
    return piece.size() * SizeOf(context_->dtype(piece));
  };
  uint64_t checksum = 0;
  bool is_equal = true;
  for (const layout::Piece& piece : published_->chunk(id).pieces) {
    const std::byte* const ours = context_->WeightsOf(piece);
    const std::byte* const theirs = received + (ours - begin);
    checksum = ExtendChecksum(checksum, {theirs, size_of(piece)});
    is_equal = is_equal && std::memcmp(ours, theirs, size_of(piece)) == 0;
  }
  const PublishedChunks::Entry& entry = published_->entry(id);
  if (checksum != entry.checksum) {
    published_->Count(ChunkFault::kReference);
    // Sound here: it is the owner's copy that changed, or it changed on the
    // way. The owner finds that before it builds upon it; that the two nodes
    // differ, the votes would find.
    if (published_->Checksum(id, context_->parts.weights) == entry.checksum) {
      return absl::OkStatus();
    }
    return Bad(published_->Describe(id),
               absl::StrCat("version ", entry.version.value(),
                            " has changed in the memory of node ",
                            context_->parts.node.value(),
                            ", and is not what came from node ",
                            context_->NodeOf(id.owner).value(),
                            ", its owner; nothing was "
                            "written"));
  }
  if (is_equal) return absl::OkStatus();
  published_->Count(ChunkFault::kResync);
  published_->Count(HealKind::kResync);
  for (const layout::Piece& piece : published_->chunk(id).pieces) {
    std::byte* const ours = context_->WeightsOf(piece);
    std::memcpy(ours, received + (ours - begin), size_of(piece));
  }
  return absl::OkStatus();
}

}  // namespace ballast::collective
