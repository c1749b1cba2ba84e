#include "server/snapshot/replica_load.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/shard_check.h"
#include "server/snapshot/files/snapshot_reader.h"

namespace ballast::snapshot {
namespace {

// A header's length is in its first bytes.
constexpr uint64_t kPrefixBytes = 8;

uint64_t RoundDown(uint64_t offset) {
  return offset / kCourierSliceBytes * kCourierSliceBytes;
}

// More than any file of such a job: a manifest may be a peer's.
uint64_t MaxShardBytes(const Manifest& manifest) {
  constexpr uint64_t kHeaderBytes = 100'000'000;
  constexpr uint64_t kCursorBytes = 64 << 10;
  uint64_t elements = 0;
  for (const TensorInfo& tensor : manifest.tensors) {
    elements += NumElements(tensor);
  }
  return kHeaderBytes + manifest.world_size() * kCursorBytes +
         elements * 4 * (3 + manifest.num_moments);
}

}  // namespace

// Used by one thread at a time.
struct ReplicaLoad::Attempt {
  HeldChoice choice;
  Done done;
  // Named as in the snapshot that they are of.
  HeldFiles files{UINT64_MAX};
  std::string path;
  Manifest manifest;
  std::unique_ptr<StateLoad> load;
  std::atomic<bool> cancelled{false};
  int shard = 0;  // that is being brought, read
  // Slices of each file that are here, by their offset.
  std::vector<std::set<uint64_t>> fetched;
  std::vector<StateLoad::Range> wanted;   // of it, still to be fetched
  void (ReplicaLoad::*next)() = nullptr;  // once nothing is
};

ReplicaLoad::ReplicaLoad(const Parts& parts) : parts_(parts), io_(parts.io) {}

ReplicaLoad::~ReplicaLoad() { Cancel(); }

std::string ReplicaLoad::PathOf(int shard) const {
  const int num_shards = attempt_->choice.num_shards();
  return absl::StrCat(
      attempt_->path, "/",
      shard == num_shards ? kManifestName : ShardName(shard, num_shards));
}

NodeRank ReplicaLoad::HolderOf(int shard) const {
  const std::vector<NodeRank>& holders = attempt_->choice.holders[shard];
  if (std::ranges::find(holders, parts_.node) != holders.end()) {
    return parts_.node;
  }
  // Not all of one.
  return holders[parts_.node.value() % holders.size()];
}

void ReplicaLoad::Start(HeldChoice choice, Done done) {
  attempt_ = std::make_shared<Attempt>();
  attempt_->choice = std::move(choice);
  attempt_->done = std::move(done);
  attempt_->path =
      absl::StrCat(parts_.job, "/", StepName(attempt_->choice.step));
  attempt_->fetched.resize(attempt_->choice.num_shards() + 1);
  BringManifest();
}

void ReplicaLoad::Cancel() {
  if (attempt_ == nullptr) return;
  attempt_->cancelled = true;
  attempt_->done = nullptr;
  attempt_.reset();
  if (is_fetching_) parts_.courier->Cancel();
  is_fetching_ = false;
}

void ReplicaLoad::Do(absl::AnyInvocable<absl::Status(Attempt&) &&> work,
                     int shard, void (ReplicaLoad::*next)()) {
  auto status = std::make_shared<absl::Status>();  // two threads, in turn
  io_.Run(
      [attempt = attempt_, status, work = std::move(work)]() mutable {
        *status = std::move(work)(*attempt);
      },
      [this, attempt = std::weak_ptr<Attempt>(attempt_), status, shard, next] {
        if (attempt_ == nullptr || attempt.lock() != attempt_) {
          return OnStale();
        }
        if (status->ok()) return (this->*next)();
        End(*status,
            absl::IsDataLoss(*status) ? std::optional(shard) : std::nullopt);
      });
}

// Of an attempt that was cancelled the last piece of work has ended.
void ReplicaLoad::OnStale() {
  if (is_idle()) parts_.on_idle();
}

// ---- From another node. ----

void ReplicaLoad::Fetch(int shard, std::span<const StateLoad::Range> ranges,
                        void (ReplicaLoad::*next)()) {
  attempt_->shard = shard;
  std::vector<StateLoad::Range>& wanted = attempt_->wanted;
  std::set<uint64_t>& fetched = attempt_->fetched[shard];
  const uint64_t size = attempt_->files.Find(PathOf(shard))->size_bytes();
  wanted.clear();
  for (const StateLoad::Range& range : ranges) {
    for (uint64_t at = RoundDown(range.begin); at < range.end;
         at += kCourierSliceBytes) {
      if (!fetched.insert(at).second) continue;
      const uint64_t end = std::min(at + kCourierSliceBytes, size);
      if (!wanted.empty() && wanted.back().end == at) {
        wanted.back().end = end;
      } else {
        wanted.push_back({at, end});
      }
    }
  }
  std::ranges::reverse(wanted);
  attempt_->next = next;
  FetchNext();
}

void ReplicaLoad::FetchNext() {
  if (attempt_->wanted.empty()) return (this->*attempt_->next)();
  if (parts_.courier == nullptr) {
    return End(absl::InternalError("another node holds it, and there is none"),
               std::nullopt);
  }
  Do(
      [file = attempt_->files.Find(PathOf(attempt_->shard))](Attempt& attempt) {
        const StateLoad::Range& range = attempt.wanted.back();
        return file->Reserve(range.begin, range.end - range.begin);
      },
      attempt_->shard, &ReplicaLoad::FetchRange);
}

void ReplicaLoad::FetchRange() {
  const StateLoad::Range range = attempt_->wanted.back();
  attempt_->wanted.pop_back();
  const int shard = attempt_->shard;
  is_fetching_ = true;
  parts_.courier->Fetch({.from = HolderOf(shard),
                         .version = attempt_->choice.step,
                         .shard = shard,
                         .file = attempt_->files.Find(PathOf(shard)),
                         .begin = range.begin,
                         .end = range.end},
                        [this, shard](const absl::Status& status) {
                          is_fetching_ = false;
                          if (status.ok()) return FetchNext();
                          // A node that is gone ends the job; all else is that
                          // copy's fault.
                          End(status, absl::IsUnavailable(status)
                                          ? std::nullopt
                                          : std::optional(shard));
                        });
}

// ---- The manifest. ----

void ReplicaLoad::BringManifest() {
  const int shard = attempt_->choice.num_shards();
  HeldFiles& files = attempt_->files;
  absl::Status status = files.MakeDirectories(attempt_->path);
  if (status.ok() && IsHere(shard)) {
    std::shared_ptr<HeldFile> own = parts_.held->Find(PathOf(shard));
    if (own == nullptr) {
      return End(absl::DataLossError("the manifest is not there"), shard);
    }
    status = files.Link(PathOf(shard), std::move(own));
    return status.ok() ? ReadManifestFile() : End(status, std::nullopt);
  }
  const uint64_t size = attempt_->choice.manifest_bytes;
  if (status.ok()) {
    status = files.CreateHeld(PathOf(shard), size, /*is_sparse=*/true).status();
  }
  if (!status.ok()) return End(status, std::nullopt);
  const StateLoad::Range all{0, size};
  Fetch(shard, std::span(&all, 1), &ReplicaLoad::ReadManifestFile);
}

void ReplicaLoad::ReadManifestFile() {
  const int shard = attempt_->choice.num_shards();
  Do(
      [](Attempt& attempt) -> absl::Status {
        uint64_t checksum = 0;
        ASSIGN_OR_RETURN(attempt.manifest,
                         ReadManifest(attempt.files, attempt.path, &checksum));
        if (checksum != attempt.choice.checksum ||
            attempt.manifest.step != attempt.choice.step ||
            attempt.manifest.num_nodes != attempt.choice.num_shards()) {
          return absl::DataLossError(
              absl::StrCat(attempt.path,
                           ": the manifest is not the one that was agreed "
                           "on"));
        }
        attempt.shard = 0;
        return absl::OkStatus();
      },
      shard, &ReplicaLoad::BringHeader);
}

// ---- Headers, shard by shard. ----

void ReplicaLoad::BringHeader() {
  Attempt& attempt = *attempt_;
  if (attempt.shard == 0) {
    const absl::Status fits =
        CheckFits(attempt.manifest, attempt.path, parts_.identity,
                  parts_.target.layout->tensors());
    if (!fits.ok()) return End(fits, std::nullopt);
  }
  if (attempt.shard == attempt.choice.num_shards()) return OpenState();
  const int shard = attempt.shard;
  const FileInfo& info = attempt.manifest.files[shard];
  if (IsHere(shard)) {
    std::shared_ptr<HeldFile> own = parts_.held->Find(PathOf(shard));
    if (own == nullptr) {
      return End(
          absl::DataLossError(absl::StrCat(PathOf(shard), " is not there")),
          shard);
    }
    const absl::Status linked =
        attempt.files.Link(PathOf(shard), std::move(own));
    return linked.ok() ? CheckHeader() : End(linked, std::nullopt);
  }
  if (info.size_bytes < kPrefixBytes ||
      info.size_bytes > MaxShardBytes(attempt.manifest)) {
    return End(absl::DataLossError(
                   absl::StrCat(PathOf(shard), " has ", info.size_bytes,
                                " bytes, which no file of this job has")),
               std::nullopt);
  }
  const absl::Status made =
      attempt.files
          .CreateHeld(PathOf(shard), info.size_bytes, /*is_sparse=*/true)
          .status();
  if (!made.ok()) return End(made, std::nullopt);
  const StateLoad::Range first{0, kPrefixBytes};
  Fetch(shard, std::span(&first, 1), &ReplicaLoad::BringRestOfHeader);
}

void ReplicaLoad::BringRestOfHeader() {
  const int shard = attempt_->shard;
  const auto file = attempt_->files.Find(PathOf(shard));
  uint64_t length = 0;
  std::memcpy(&length, file->bytes().data(), kPrefixBytes);
  if (length > file->size_bytes() - kPrefixBytes) {
    return End(absl::DataLossError(absl::StrCat(
                   PathOf(shard), " has a header of ", length, " bytes")),
               shard);
  }
  const StateLoad::Range header{0, kPrefixBytes + length};
  Fetch(shard, std::span(&header, 1), &ReplicaLoad::CheckHeader);
}

void ReplicaLoad::CheckHeader() {
  const int shard = attempt_->shard;
  Do(
      [shard, path = PathOf(shard)](Attempt& attempt) -> absl::Status {
        ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                         attempt.files.Open(path));
        RETURN_IF_ERROR(
            CheckShardHeader(*file, attempt.manifest.files[shard]).status());
        ++attempt.shard;
        return absl::OkStatus();
      },
      shard, &ReplicaLoad::BringHeader);
}

// ---- What is in them. ----

void ReplicaLoad::OpenState() {
  Do(
      [target = parts_.target](Attempt& attempt) -> absl::Status {
        // Each file is what was written: if they do not fit, no copy helps.
        absl::StatusOr<std::unique_ptr<StateLoad>> load = StateLoad::Open(
            attempt.files, attempt.path, attempt.choice.checksum, target);
        if (!load.ok()) {
          return absl::InternalError(load.status().message());
        }
        // An earlier attempt may have left some that are not stored now.
        if (optimizer::Residuals* const residuals = target.residuals) {
          for (int v = 0; v < 2; ++v) {
            std::ranges::fill(residuals->version(v), 0.0f);
          }
        }
        attempt.load = *std::move(load);
        attempt.shard = 0;
        return absl::OkStatus();
      },
      0, &ReplicaLoad::BringShard);
}

void ReplicaLoad::BringShard() {
  Attempt& attempt = *attempt_;
  const int shard = attempt.shard;
  if (shard == attempt.choice.num_shards()) {
    return End(attempt.load->Finish(), std::nullopt);
  }
  if (IsHere(shard)) return ReadShardFile();
  Fetch(shard, attempt.load->Ranges(shard), &ReplicaLoad::ReadShardFile);
}

void ReplicaLoad::ReadShardFile() {
  const int shard = attempt_->shard;
  const auto fetched =
      IsHere(shard) ? nullptr : attempt_->files.Find(PathOf(shard));
  Do(
      [shard, fetched](Attempt& attempt) -> absl::Status {
        RETURN_IF_ERROR(attempt.load->ReadShard(shard, &attempt.cancelled));
        if (fetched != nullptr) fetched->Clear();
        ++attempt.shard;
        return absl::OkStatus();
      },
      shard, &ReplicaLoad::BringShard);
}

void ReplicaLoad::End(absl::StatusOr<LoadedState> loaded,
                      std::optional<int> bad_shard) {
  Outcome outcome{std::move(loaded), std::nullopt};
  if (bad_shard.has_value()) {
    const NodeRank holder = HolderOf(*bad_shard);
    outcome.bad = BadCopy{attempt_->choice.checksum, *bad_shard, holder};
    outcome.loaded = absl::DataLossError(absl::StrCat(
        "of the replica of step ", attempt_->choice.step, " the copy of node ",
        holder.value(),
        " is damaged: ", std::string(outcome.loaded.status().message())));
  }
  // Not from inside a call; nothing follows on this attempt.
  io_.Run([] {},
          [this, attempt = std::weak_ptr<Attempt>(attempt_),
           outcome = std::move(outcome)]() mutable {
            if (attempt_ == nullptr || attempt.lock() != attempt_) {
              return OnStale();
            }
            Done done = std::move(attempt_->done);
            attempt_.reset();
            std::move(done)(std::move(outcome));
          });
}

}  // namespace ballast::snapshot
