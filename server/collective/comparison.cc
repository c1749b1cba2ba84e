#include "server/collective/comparison.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/collective/chunk_source.h"

namespace ballast::collective {

using Entry = PublishedChunks::Entry;

void Comparison::Start() {
  Cancel();
  bucket_ = 0;
  owner_ = 0;
  timer_ = context_->parts.executor->PostAfter(absl::ZeroDuration(), [this] {
    timer_ = 0;
    AskNext();
  });
}

void Comparison::Cancel() {
  if (context_->parts.pulls != nullptr) context_->parts.pulls->Cancel(pull_);
  context_->parts.executor->Cancel(std::exchange(timer_, 0));
}

void Comparison::AskNext() {
  const Parts& parts = context_->parts;
  const std::span<const layout::Bucket> buckets = parts.layout->buckets();
  while (bucket_ < buckets.size()) {
    const layout::Shard& shard = buckets[bucket_].shards[owner_];
    if (!shard.chunks.empty() && shard.owner != parts.node) break;
    if (++owner_ == context_->num_owners()) {
      owner_ = 0;
      ++bucket_;
    }
  }
  if (bucket_ == buckets.size()) return End(absl::OkStatus());
  marks_.resize(buckets[bucket_].shards[owner_].chunks.size());
  const absl::StatusOr<transport::PullId> pull = parts.pulls->Pull(
      NodeRank(owner_),
      {.generation = context_->generation,
       .version = {},
       .bucket = buckets[bucket_].id,
       .owner = NodeRank(owner_),
       .kind = kPullMarks},
      std::as_writable_bytes(std::span(marks_)),
      [this](const absl::Status& status) { OnMarks(status); });
  if (!pull.ok()) return End(pull.status());
  pull_ = *pull;
  if (parts.pull_timeout == absl::InfiniteDuration()) return;
  timer_ = parts.executor->PostAfter(parts.pull_timeout, [this] {
    timer_ = 0;
    Cancel();
    End(absl::DeadlineExceededError(
        absl::StrCat("node ", owner_, " has not told its checksums within ",
                     absl::FormatDuration(context_->parts.pull_timeout))));
  });
}

void Comparison::OnMarks(const absl::Status& status) {
  const Parts& parts = context_->parts;
  parts.executor->Cancel(std::exchange(timer_, 0));
  if (!status.ok()) return End(status);
  bytes_received_ += marks_.size() * sizeof(Entry);
  const layout::Bucket& bucket = parts.layout->buckets()[bucket_];
  num_healing_ = 1;  // this one
  failure_ = absl::OkStatus();
  for (size_t i = 0; i < marks_.size(); ++i) {
    Compare({bucket.id, NodeRank(owner_), i}, marks_[i]);
  }
  OnHealed(absl::OkStatus());
}

void Comparison::Compare(const ChunkId& id, const Entry& theirs) {
  PublishedChunks* const published = context_->parts.published;
  const Entry& ours = published->entry(id);
  if (ours.checksum == theirs.checksum && ours.version == theirs.version) {
    return;
  }
  published->Count(ChunkFault::kVote);
  ++num_healing_;
  healer_->Heal({.id = id,
                 .version = theirs.version,
                 .checksum = theirs.checksum,
                 .kind = HealKind::kVote},
                absl::DataLossError(absl::StrCat(
                    published->Describe(id), ": version ", ours.version.value(),
                    " of node ", context_->parts.node.value(),
                    " is not version ", theirs.version.value(), " of node ",
                    id.owner.value(), ", its owner")),
                [this](const absl::Status& status) { OnHealed(status); });
}

void Comparison::OnHealed(const absl::Status& status) {
  failure_.Update(status);
  if (--num_healing_ > 0) return;
  if (!failure_.ok()) return End(failure_);
  if (++owner_ == context_->num_owners()) {
    owner_ = 0;
    ++bucket_;
  }
  AskNext();
}

void Comparison::End(const absl::Status& status) {
  if (status.ok()) context_->parts.published->SealAll();
  done_(status);
}

}  // namespace ballast::collective
