#include "server/collective/chunk_source.h"

#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast::collective {
namespace {

using Entry = PublishedChunks::Entry;
static_assert(sizeof(Entry) == 16);

absl::Status Nothing(const std::string& what) {
  return absl::NotFoundError(absl::StrCat("there is no ", what));
}

}  // namespace

ChunkSource::ChunkSource(const Context* context, const ChunkStages* stages)
    : context_(context),
      stages_(stages),
      published_(context->parts.published),
      alive_(std::make_shared<int>(0)) {
  context_->parts.pulls->SetSource(kPullChunk, this);
  context_->parts.pulls->SetSource(kPullMarks, this);
}

ChunkSource::~ChunkSource() { Close(); }

void ChunkSource::Close() {
  if (is_closed_) return;
  is_closed_ = true;
  transport::Pulls* const pulls = context_->parts.pulls;
  pulls->SetSource(kPullChunk, nullptr);
  pulls->SetSource(kPullMarks, nullptr);
  const absl::Status why = absl::UnavailableError(
      absl::StrCat("generation ", context_->generation.value(), " has ended"));
  for (Request& request : std::exchange(waiting_, {})) {
    std::move(request.reply).Refuse(why);
  }
}

void ChunkSource::OnPull(NodeRank, const transport::PullKey& key,
                         transport::PullReply reply) {
  Request request{key, std::move(reply)};
  const absl::Status status = Check(key);
  if (!status.ok()) return std::move(request.reply).Refuse(status);
  if (Answer(&request)) return;
  if (waiting_.size() == kMaxWaiting) AnswerAll();  // some gave up
  if (waiting_.size() == kMaxWaiting) {
    return std::move(request.reply)
        .Refuse(absl::ResourceExhaustedError(
            absl::StrCat(kMaxWaiting, " others wait for chunks")));
  }
  waiting_.push_back(std::move(request));
}

absl::Status ChunkSource::Check(const transport::PullKey& key) const {
  const layout::Layout& layout = *context_->parts.layout;
  if (key.generation != context_->generation) {
    return absl::FailedPreconditionError(absl::StrCat(
        "generation ", key.generation.value(), " is asked for in generation ",
        context_->generation.value()));
  }
  if (key.bucket.value() < 0 ||
      key.bucket.value() >= static_cast<int64_t>(layout.buckets().size())) {
    return Nothing(absl::StrCat("bucket ", key.bucket.value()));
  }
  if (key.owner.value() < 0 ||
      key.owner.value() >= layout.topology().num_owners()) {
    return Nothing(absl::StrCat("owner ", key.owner.value()));
  }
  if (key.kind == kPullMarks) {
    if (key.owner == context_->parts.node) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the marks of node ", key.owner.value(), " are its own to tell"));
  }
  const layout::Shard& shard = layout.shard(key.bucket, key.owner);
  if (key.chunk < shard.chunks.size()) return absl::OkStatus();
  return Nothing(absl::StrCat("chunk ", key.chunk, " of ", shard.chunks.size(),
                              " in bucket ", key.bucket.value(), " of node ",
                              key.owner.value()));
}

void ChunkSource::AnswerAll() {
  std::vector<Request> waiting = std::exchange(waiting_, {});
  std::erase_if(waiting, [this](Request& request) {
    return !request.reply.is_wanted() || Answer(&request);
  });
  waiting_ = std::move(waiting);
}

bool ChunkSource::Answer(Request* request) {
  if (request->key.kind == kPullMarks) return AnswerMarks(request);
  return AnswerChunk(
      {request->key.bucket, request->key.owner, request->key.chunk}, request);
}

bool ChunkSource::AnswerChunk(const ChunkId& id, Request* request) {
  const ChunkStage stage = stages_->of(id);
  if (stage == ChunkStage::kDamaged) {
    std::move(request->reply)
        .Refuse(absl::DataLossError("its copy is damaged too"));
    return true;
  }
  if (stage == ChunkStage::kInWork) return false;
  const Entry entry = published_->entry(id);
  if (entry.version > request->key.version) {
    std::move(request->reply)
        .Refuse(absl::NotFoundError(
            absl::StrCat("has version ", entry.version.value(), " instead of ",
                         request->key.version.value())));
    return true;
  }
  if (entry.version < request->key.version || num_sending_ == kMaxSending) {
    return false;
  }
  auto copy = std::make_unique<std::vector<std::byte>>(sizeof(entry) +
                                                       published_->BytesOf(id));
  const std::span<std::byte> bits = std::span(*copy).subspan(sizeof(entry));
  std::memcpy(copy->data(), &entry, sizeof(entry));
  published_->CopyOut(id, context_->parts.weights, bits);
  // Never hand on damage.
  if (published_->ChecksumOfCopy(id, bits) != entry.checksum) {
    std::move(request->reply)
        .Refuse(absl::DataLossError("its copy has changed in memory too"));
    return true;
  }
  Send(std::move(copy), request);
  return true;
}

bool ChunkSource::AnswerMarks(Request* request) {
  const BucketId bucket = request->key.bucket;
  const layout::Shard& shard = context_->own_shard(bucket);
  if (num_sending_ == kMaxSending) return false;
  std::vector<Entry> entries;
  for (size_t i = 0; i < shard.chunks.size(); ++i) {
    const ChunkId id{bucket, shard.owner, i};
    if (stages_->of(id) != ChunkStage::kQuiet) return false;
    entries.push_back(published_->entry(id));
  }
  const auto bytes = std::as_bytes(std::span(entries));
  Send(std::make_unique<std::vector<std::byte>>(bytes.begin(), bytes.end()),
       request);
  return true;
}

void ChunkSource::Send(std::unique_ptr<std::vector<std::byte>> copy,
                       Request* request) {
  ++num_sending_;
  const std::span<const std::byte> bytes(*copy);
  std::move(request->reply)
      .Send(bytes,
            [this, copy = std::move(copy),
             alive = std::weak_ptr<int>(alive_)](const absl::Status& status) {
              if (alive.expired()) return;
              --num_sending_;
              if (status.ok()) bytes_sent_ += copy->size();
              OnStages();
            });
}

}  // namespace ballast::collective
