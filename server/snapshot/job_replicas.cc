#include "server/snapshot/job_replicas.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/failpoint.h"
#include "server/base/status_macros.h"
#include "server/layout/replica_holder.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/safetensors.h"
#include "server/snapshot/files/shard_check.h"
#include "server/snapshot/files/snapshot_reader.h"

namespace ballast::snapshot {
namespace {

constexpr uint64_t kMaxCursorBytes = 64 << 10;  // of a rank
// Of what a manifest says beside its tensors and files.
constexpr uint64_t kManifestBytes = 64 << 10;

uint64_t ShardBytes(const layout::Layout& layout, NodeRank node,
                    const ShardContent& content) {
  const ShardPlan plan(layout, node, content);
  std::vector<Section> sections(plan.sections().begin(), plan.sections().end());
  const int ranks = layout.topology().local_world_size;
  for (int rank = 0; rank < ranks; ++rank) {
    sections.push_back({.name = "cursor:1048576",
                        .type = ElementType::kU8,
                        .shape = {static_cast<int64_t>(kMaxCursorBytes)}});
  }
  const std::string checksums(16 * sections.size(), '0');
  // Numbers of cursors are longer than those of the header made here.
  const uint64_t header = MakeHeader(sections, {{kFormatKey, kShardFormat},
                                                {kChecksumsKey, checksums}})
                              .size() +
                          64 * static_cast<uint64_t>(ranks);
  return HeldBytesOf(header + plan.data_bytes() + ranks * kMaxCursorBytes);
}

uint64_t ManifestBytes(const layout::Layout& layout) {
  uint64_t bytes = kManifestBytes + 256 * layout.topology().num_nodes;
  for (const layout::TensorSpec& tensor : layout.tensors()) {
    // Its own entry, and what an error budget may add on both paths.
    bytes += tensor.name.size() + 22 * tensor.shape.size() + 512;
  }
  return HeldBytesOf(bytes);
}

}  // namespace

uint64_t HeldBytes(const layout::Layout& layout, NodeRank node,
                   const ShardContent& content) {
  uint64_t set = ShardBytes(layout, node, content) + ManifestBytes(layout);
  if (layout.topology().num_nodes > 1) {
    set += ShardBytes(layout, layout::ReplicaSource(layout.topology(), node),
                      content);
  }
  return 2 * set;
}

JobReplicas::JobReplicas(Parts parts)
    : parts_(std::move(parts)),
      io_(parts_.io),
      courier_({.clock = parts_.clock,
                .executor = parts_.executor,
                .find = [this](int64_t version,
                               int shard) { return Find(version, shard); },
                .max_bytes_per_second = parts_.max_bytes_per_second,
                .is_busy = parts_.is_busy}),
      cancelled_(std::make_shared<std::atomic<bool>>(false)) {}

std::string JobReplicas::Directory() const {
  return TemporaryPath(parts_.job, making_->id);
}

std::string JobReplicas::HeldPath(int64_t version) const {
  return absl::StrCat(parts_.job, "/", StepName(version));
}

// Numbers from a peer. The manifest is the one after the last shard.
std::shared_ptr<HeldFile> JobReplicas::Find(int64_t version, int shard) const {
  const int num_nodes = parts_.topology.num_nodes;
  if (version < 0 || shard < 0 || shard > num_nodes) return nullptr;
  const std::string name =
      shard == num_nodes ? kManifestName : ShardName(shard, num_nodes);
  // In this order: it may be placed at this moment.
  if (making_.has_value() && making_->version == version) {
    auto file = parts_.files->Find(absl::StrCat(Directory(), "/", name));
    if (file != nullptr) return file;
  }
  return parts_.files->Find(absl::StrCat(HeldPath(version), "/", name));
}

void JobReplicas::Run(absl::AnyInvocable<absl::Status() &&> work, Done done) {
  auto status = std::make_shared<absl::Status>();  // two threads, in turn
  io_.Run([status,
           work = std::move(work)]() mutable { *status = std::move(work)(); },
          [this, status, done = std::move(done)]() mutable {
            std::move(done)(*status);
            if (is_idle()) parts_.on_idle();
          });
}

void JobReplicas::Remove(std::string path) {
  Run([files = parts_.files,
       path = std::move(path)] { return files->RemoveAll(path); },
      [](const absl::Status&) {});  // cannot fail on a path of ours
}

// ---- One set. ----

void JobReplicas::Begin(const std::string& id, int64_t version) {
  making_.emplace();
  making_->id = id;
  making_->version = version;
  cancelled_ = std::make_shared<std::atomic<bool>>(false);
}

void JobReplicas::WriteManifest(
    const Manifest& manifest,
    absl::AnyInvocable<void(absl::StatusOr<ManifestFile>) &&> done) {
  auto text = std::make_shared<std::string>(ToText(manifest));
  Run(
      [files = parts_.files, text,
       path = absl::StrCat(Directory(), "/", kManifestName)]() -> absl::Status {
        ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files->Create(path));
        return file->WriteAt(0, std::as_bytes(std::span(*text)));
      },
      [text, done = std::move(done)](const absl::Status& status) mutable {
        if (!status.ok()) return std::move(done)(status);
        std::move(done)(ManifestFile{text->size(), Checksum(*text)});
      });
}

void JobReplicas::Collect(const ManifestFile& manifest, const FileInfo& own,
                          Done done) {
  making_->manifest_file = manifest;
  making_->own = own;
  making_->done = std::move(done);
  if (parts_.node == NodeRank(0)) return ReadCopiedManifest();
  FetchManifest();
}

void JobReplicas::FetchManifest() {
  const uint64_t size = making_->manifest_file.size_bytes;
  absl::StatusOr<std::shared_ptr<HeldFile>> file =
      absl::DataLossError(absl::StrCat("a manifest of ", size, " bytes"));
  if (size > 0 && size <= kMaxManifestBytes) {
    file = parts_.files->CreateHeld(
        absl::StrCat(Directory(), "/", kManifestName), size);
  }
  if (!file.ok()) return End(file.status());
  courier_.Fetch({.from = NodeRank(0),
                  .version = making_->version,
                  .shard = parts_.topology.num_nodes,
                  .file = *std::move(file),
                  .end = size},
                 [this](const absl::Status& status) {
                   if (!status.ok()) return End(status);
                   ReadCopiedManifest();
                 });
}

void JobReplicas::ReadCopiedManifest() {
  auto read = std::make_shared<Manifest>();
  Run(
      [files = parts_.files, read, directory = Directory(),
       expected = making_->manifest_file.checksum]() -> absl::Status {
        uint64_t checksum = 0;
        ASSIGN_OR_RETURN(*read, ReadManifest(*files, directory, &checksum));
        if (checksum == expected) return absl::OkStatus();
        return absl::DataLossError("the manifest is not the one of node 0");
      },
      [this, read, id = making_->id](const absl::Status& status) {
        if (!making_.has_value() || making_->id != id) return;
        if (!status.ok()) return End(status);
        making_->manifest = std::move(*read);
        if (const absl::Status fits = CheckManifest(); !fits.ok()) {
          return End(fits);
        }
        FetchShard();
      });
}

absl::Status JobReplicas::CheckManifest() const {
  const Manifest& manifest = making_->manifest;
  const int num_nodes = parts_.topology.num_nodes;
  const auto node = static_cast<size_t>(parts_.node.value());
  if (manifest.id == making_->id && manifest.job == parts_.job &&
      manifest.step == making_->version && manifest.num_nodes == num_nodes &&
      manifest.files.size() == static_cast<size_t>(num_nodes) &&
      manifest.files[node].size_bytes == making_->own.size_bytes &&
      manifest.files[node].header_checksum == making_->own.header_checksum) {
    return absl::OkStatus();
  }
  return absl::DataLossError("the manifest is of another replica");
}

void JobReplicas::FetchShard() {
  if (parts_.topology.num_nodes == 1) return CheckAndPlace();
  const NodeRank source = layout::ReplicaSource(parts_.topology, parts_.node);
  const FileInfo& info = making_->manifest.files[source.value()];
  std::string path = absl::StrCat(Directory(), "/", info.name);
  Run(
      // Bounded by what is held at most.
      [files = parts_.files, path, size_bytes = info.size_bytes] {
        return files->CreateHeld(path, size_bytes).status();
      },
      [this, path, source, id = making_->id](const absl::Status& status) {
        if (!making_.has_value() || making_->id != id) return;
        if (!status.ok()) return End(status);
        std::shared_ptr<HeldFile> file = parts_.files->Find(path);
        const uint64_t size_bytes = file->size_bytes();
        courier_.Fetch({.from = source,
                        .version = making_->version,
                        .shard = source.value(),
                        .file = std::move(file),
                        .end = size_bytes},
                       [this](const absl::Status& fetched) {
                         if (!fetched.ok()) return End(fetched);
                         CheckAndPlace();
                       });
      });
}

void JobReplicas::CheckAndPlace() {
  const NodeRank source = layout::ReplicaSource(parts_.topology, parts_.node);
  Run(
      [files = parts_.files, from = Directory(),
       to = HeldPath(making_->version), cancelled = cancelled_,
       info = making_->manifest.files[source.value()]]() -> absl::Status {
        ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                         files->Open(absl::StrCat(from, "/", info.name)));
        RETURN_IF_ERROR(CheckShard(*file, info, cancelled.get()));
        BALLAST_FAILPOINT("replica.fetched");
        RETURN_IF_ERROR(files->RemoveAll(to));
        RETURN_IF_ERROR(files->Rename(from, to));
        BALLAST_FAILPOINT("replica.placed");
        return absl::OkStatus();
      },
      [this, id = making_->id](const absl::Status& status) {
        if (!making_.has_value() || making_->id != id) return;
        End(status);
      });
}

void JobReplicas::End(const absl::Status& status) {
  if (making_->done == nullptr) return;
  Done done = std::exchange(making_->done, nullptr);
  parts_.executor->Post(
      [this, id = making_->id, status, done = std::move(done)]() mutable {
        if (making_.has_value() && making_->id == id) std::move(done)(status);
      });
}

void JobReplicas::Keep() {
  KeepOnly(making_->version);
  making_.reset();
}

void JobReplicas::KeepOnly(int64_t version) {
  Run(
      [files = parts_.files, job = parts_.job,
       kept = StepName(version)]() -> absl::Status {
        ASSIGN_OR_RETURN(const std::vector<DirectoryEntry> entries,
                         files->List(job));
        for (const DirectoryEntry& entry : entries) {
          if (entry.name == kept || !IsStepName(entry.name)) continue;
          BALLAST_FAILPOINT("replica.pruning");
          RETURN_IF_ERROR(files->RemoveAll(absl::StrCat(job, "/", entry.name)));
        }
        return absl::OkStatus();
      },
      [](const absl::Status&) {});  // as in Remove
}

bool JobReplicas::Holds(int64_t version) const {
  return version >= 0 && parts_.files->Find(absl::StrCat(
                             HeldPath(version), "/", kManifestName)) != nullptr;
}

void JobReplicas::Drop() {
  if (!making_.has_value()) return;
  cancelled_->store(true);
  courier_.Cancel();
  // In this order: it may be placed just now.
  Remove(Directory());
  Remove(HeldPath(making_->version));
  making_.reset();
}

void JobReplicas::Abandon() {
  if (!making_.has_value()) return;
  cancelled_->store(true);
  courier_.Cancel();
  Remove(Directory());
  making_.reset();
}

void JobReplicas::Close() {
  Run(
      [files = parts_.files]() -> absl::Status {
        files->Close();
        return absl::OkStatus();
      },
      [](const absl::Status&) {});
}

}  // namespace ballast::snapshot
