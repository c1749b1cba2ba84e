#include "server/collective/verify/verifier.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "server/base/failpoint.h"
#include "server/collective/task_gate.h"

namespace ballast::collective {

class Verifier::Reader final : public GatedTask {
 public:
  explicit Reader(Verifier* verifier)
      : GatedTask(&verifier->context_->gate), verifier_(verifier) {}

  void set_id(const ChunkId& id) { id_ = id; }
  const ChunkId& id() const { return id_; }
  const absl::Status& status() const { return status_; }

  void Run(int) override { status_ = verifier_->Read(id_); }

 private:
  void OnDone() override { verifier_->OnRead(this); }

  Verifier* const verifier_;
  ChunkId id_;
  absl::Status status_;
};

Verifier::Verifier(Context* context, OnReduced on_reduced)
    : context_(context),
      published_(context->parts.published),
      on_reduced_(std::move(on_reduced)),
      buckets_(context->parts.layout->buckets().size()) {
  const size_t num_readers = std::max<size_t>(context->threads.size() / 2, 1);
  for (size_t i = 0; i < num_readers; ++i) {
    readers_.push_back(std::make_unique<Reader>(this));
    idle_.push_back(readers_.back().get());
  }
  started_.reserve(buckets_.size());
}

Verifier::~Verifier() = default;

void Verifier::Start(BucketId bucket) {
  OfBucket& of = buckets_[bucket.value()];
  of.is_healed = false;
  for (const layout::Shard& shard : context_->bucket(bucket).shards) {
    of.num_left += shard.chunks.size();
  }
  started_.push_back(bucket);
  Submit();
}

void Verifier::Report(BucketId bucket, const Reduced& reduced) {
  OfBucket& of = buckets_[bucket.value()];
  if (of.num_left > 0) {
    of.reduced = reduced;
  } else {
    on_reduced_(bucket, reduced);
  }
}

std::optional<ChunkId> Verifier::Next() {
  while (next_bucket_ < started_.size()) {
    const BucketId bucket = started_[next_bucket_];
    const NodeRank owner(next_owner_);
    if (next_index_ <
        context_->parts.layout->shard(bucket, owner).chunks.size()) {
      return ChunkId{bucket, owner, next_index_++};
    }
    next_index_ = 0;
    if (++next_owner_ < context_->num_owners()) continue;
    next_owner_ = 0;
    ++next_bucket_;
  }
  started_.clear();
  next_bucket_ = 0;
  return std::nullopt;
}

void Verifier::Submit() {
  while (!idle_.empty()) {
    const std::optional<ChunkId> id = Next();
    if (!id.has_value()) return;
    Reader* const reader = idle_.back();
    idle_.pop_back();
    reader->set_id(*id);
    if (context_->watch != nullptr) context_->watch->OnSubmitted(*id);
    context_->gate.Submit(reader);
  }
}

void Verifier::OnRead(Reader* reader) {
  const ChunkId id = reader->id();
  const absl::Status status = reader->status();
  idle_.push_back(reader);
  Submit();
  if (!status.ok()) return OnDamaged(id, status);
  if (context_->watch != nullptr) context_->watch->OnSound(id);
  OnSound(id.bucket);
}

// Its owner's chunk, or its own, in the version in which it is: nobody goes on
// to the next one before this node has voted.
void Verifier::OnDamaged(const ChunkId& id, const absl::Status& why) {
  if (context_->watch == nullptr) {
    return context_->observer->OnOperationFailed(why);
  }
  const PublishedChunks::Entry& entry = published_->entry(id);
  context_->watch->OnDamaged(
      {.id = id,
       .step = Step(entry.version.value()),
       .why = why,
       .told = entry.checksum},
      [this, id](absl::StatusOr<AfterHealing> after) {
        if (!after.ok()) {
          return context_->observer->OnOperationFailed(after.status());
        }
        buckets_[id.bucket.value()].is_healed = true;
        OnSound(id.bucket);
      });
}

void Verifier::OnSound(BucketId bucket) {
  OfBucket& of = buckets_[bucket.value()];
  if (--of.num_left > 0) return;
  if (of.is_healed) published_->Seal(bucket);  // a note may have changed
  const std::optional<Reduced> reduced = std::exchange(of.reduced, {});
  if (reduced.has_value()) {
    on_reduced_(bucket, *reduced);
  }
}

absl::Status Verifier::Read(const ChunkId& id) const {
  published_->CountVerified();
  const uint64_t checksum = published_->Checksum(id, context_->parts.weights);
  const PublishedChunks::Entry& entry = published_->entry(id);
  if (checksum == entry.checksum ||
      BALLAST_SABOTAGED("collective.published_unverified") ||
      BALLAST_SABOTAGED("collective.delta_unverified")) {  // nor here
    return absl::OkStatus();
  }
  published_->Count(ChunkFault::kVerify);
  return absl::DataLossError(absl::StrFormat(
      "%s: version %d has changed in the memory of node %d (checksum %016x "
      "instead of %016x), found before the vote",
      published_->Describe(id), entry.version.value(),
      context_->parts.node.value(), checksum, entry.checksum));
}

}  // namespace ballast::collective
