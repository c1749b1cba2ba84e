#include "server/snapshot/files/snapshot_reader.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "server/base/failpoint.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/base/xxh3.h"

namespace ballast::snapshot {
namespace {

constexpr uint64_t kSliceBytes = 1 << 20;
constexpr uint64_t kMaxCursorBytes = 64 << 10;

absl::Status At(const std::string& path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(path, ": ", std::string(status.message())));
}

absl::Status Bad(const std::string& what) { return absl::DataLossError(what); }

using TensorIndex = absl::flat_hash_map<std::string, int32_t>;

ElementType TypeOf(const Manifest& manifest, const StoredSection& section) {
  if (section.kind == Kind::kCursor) return ElementType::kU8;
  if (section.kind != Kind::kPublished) return ElementType::kF32;
  return ToElementType(manifest.tensors[section.tensor].dtype);
}

// Whether a snapshot of this manifest holds this of the tensor.
bool IsStored(const Manifest& manifest, const TensorInfo& tensor, Kind kind) {
  switch (kind) {
    case Kind::kMaster:
      return tensor.trainable;
    case Kind::kM:
      return tensor.trainable && manifest.num_moments > 0;
    case Kind::kV:
      return tensor.trainable && manifest.num_moments > 1;
    case Kind::kPublished:
      return !tensor.trainable || manifest.has_published;
    case Kind::kResidual:
      return tensor.trainable && manifest.has_residuals;
    case Kind::kCursor:
      break;
  }
  return false;
}

// From what a header says, with the manifest at hand.
absl::StatusOr<StoredSection> Place(const Manifest& manifest,
                                    const TensorIndex& index,
                                    const Section& section) {
  const auto name = ParseSectionName(section.name);
  if (!name.has_value()) {
    return Bad(absl::StrCat("the section ", base::Quoted(section.name),
                            " has no known name"));
  }
  StoredSection stored;
  stored.kind = name->kind;
  stored.begin = name->begin;
  stored.end = name->end;
  stored.size_bytes = section.size_bytes();
  int64_t count = name->end - name->begin;
  if (name->kind == Kind::kCursor) {
    stored.tensor = name->rank;
    count = static_cast<int64_t>(section.size_bytes());
    if (name->rank >= manifest.world_size() ||
        section.size_bytes() > kMaxCursorBytes) {
      return Bad(
          absl::StrCat("no rank has the cursor ", base::Quoted(section.name)));
    }
  } else {
    const auto it = index.find(name->tensor);
    if (it == index.end() ||
        !IsStored(manifest, manifest.tensors[it->second], name->kind) ||
        name->end > NumElements(manifest.tensors[it->second]) ||
        name->rank >= manifest.num_nodes) {
      return Bad(absl::StrCat("the section ", base::Quoted(section.name),
                              " is of no array of the manifest"));
    }
    stored.tensor = it->second;
    stored.node = name->rank;
  }
  if (section.type != TypeOf(manifest, stored) || section.shape.size() != 1 ||
      section.shape[0] != count) {
    return Bad(absl::StrCat("the section ", base::Quoted(section.name),
                            " has another dtype or shape than its name says"));
  }
  return stored;
}

}  // namespace

absl::StatusOr<Manifest> ReadManifest(FileSystem& files, std::string_view path,
                                      uint64_t* checksum) {
  const std::string name = absl::StrCat(std::string(path), "/", kManifestName);
  ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Open(name));
  ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  if (size > kMaxManifestBytes) {
    return Bad(absl::StrCat(name, " has ", size, " bytes, more than any"));
  }
  std::string text(size, '\0');
  RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(text))));
  absl::StatusOr<Manifest> manifest = ParseManifest(text);
  if (!manifest.ok()) return At(std::string(path), manifest.status());
  if (checksum != nullptr) *checksum = Checksum(text);
  return manifest;
}

absl::StatusOr<std::unique_ptr<SnapshotReader>> SnapshotReader::Open(
    FileSystem& files, std::string_view path) {
  auto reader = std::make_unique<SnapshotReader>();
  ASSIGN_OR_RETURN(reader->manifest_,
                   ReadManifest(files, path, &reader->checksum_));
  for (const TensorInfo& tensor : reader->manifest_.tensors) {
    const auto position = static_cast<int32_t>(reader->index_.size());
    reader->index_[tensor.name] = position;
  }
  for (const FileInfo& info : reader->manifest_.files) {
    const std::string name = absl::StrCat(std::string(path), "/", info.name);
    RETURN_IF_ERROR(At(name, reader->OpenShard(files, name, info)));
  }
  RETURN_IF_ERROR(At(std::string(path), reader->CheckCoverage()));
  reader->slice_.resize(kSliceBytes);
  return reader;
}

uint64_t SnapshotReader::data_bytes() const {
  uint64_t total = 0;
  for (const Shard& shard : shards_) {
    for (const auto& section : shard.sections) total += section.size_bytes;
  }
  return total;
}

absl::Status SnapshotReader::OpenShard(FileSystem& files,
                                       const std::string& path,
                                       const FileInfo& info) {
  absl::StatusOr<std::unique_ptr<File>> file = files.Open(path);
  if (absl::IsNotFound(file.status())) {
    return Bad("the manifest names this file, and it is not there");
  }
  RETURN_IF_ERROR(file.status());
  ASSIGN_OR_RETURN(const uint64_t size, (*file)->Size());
  if (size != info.size_bytes) {
    return Bad(absl::StrCat("it has ", size, " bytes, the manifest says ",
                            info.size_bytes, ": cut short or another file"));
  }
  ASSIGN_OR_RETURN(const Header header, ReadHeader(**file));
  if (header.checksum != info.header_checksum) {
    return Bad(
        "its header is not the one that was written (checksum): damaged, or a "
        "file of another snapshot");
  }
  const auto format = header.metadata.find(kFormatKey);
  const auto checksums = header.metadata.find(kChecksumsKey);
  if (format == header.metadata.end() || format->second != kShardFormat ||
      checksums == header.metadata.end() ||
      checksums->second.size() != 16 * header.sections.size()) {
    return Bad("its metadata are not a shard's");
  }
  Shard& shard = shards_.emplace_back();
  shard.path = path;
  shard.file = *std::move(file);
  shard.sections.reserve(header.sections.size());
  for (size_t i = 0; i < header.sections.size(); ++i) {
    ASSIGN_OR_RETURN(StoredSection stored,
                     Place(manifest_, index_, header.sections[i]));
    stored.offset = header.data_begin + header.sections[i].begin;
    const std::string_view hex = checksums->second;
    if (!FromHex16(hex.substr(16 * i, 16), &stored.checksum)) {
      return Bad("a checksum of its metadata is none");
    }
    shard.sections.push_back(stored);
  }
  return absl::OkStatus();
}

// Each array of each tensor is there once, from its first to its last element;
// residuals once of each node.
absl::Status SnapshotReader::CheckCoverage() const {
  std::vector<std::tuple<Kind, int32_t, int32_t, int64_t, int64_t>> ranges;
  std::vector<int> cursors(manifest_.world_size());
  for (const Shard& shard : shards_) {
    for (const StoredSection& section : shard.sections) {
      if (section.kind == Kind::kCursor) {
        ++cursors[section.tensor];
      } else if (section.begin < section.end) {
        ranges.emplace_back(section.kind, section.tensor, section.node,
                            section.begin, section.end);
      }
    }
  }
  std::sort(ranges.begin(), ranges.end());
  auto next = ranges.begin();
  for (int k = 0; k < kNumTensorKinds; ++k) {
    const Kind kind = static_cast<Kind>(k);
    for (size_t t = 0; t < manifest_.tensors.size(); ++t) {
      const TensorInfo& tensor = manifest_.tensors[t];
      if (!IsStored(manifest_, tensor, kind)) continue;
      const int64_t size = NumElements(tensor);
      const int copies = kind == Kind::kResidual ? manifest_.num_nodes : 1;
      for (int32_t node = 0; node < copies; ++node) {
        int64_t at = 0;
        for (; next != ranges.end() &&
               std::tie(std::get<0>(*next), std::get<1>(*next),
                        std::get<2>(*next)) ==
                   std::make_tuple(kind, static_cast<int32_t>(t), node);
             ++next) {
          if (std::get<3>(*next) != at) break;
          at = std::get<4>(*next);
        }
        if (at == size) continue;
        return Bad(absl::StrCat("its files do not hold each element once: ",
                                std::string(Name(kind)), " of tensor ",
                                base::Quoted(tensor.name), " at element ", at));
      }
    }
  }
  if (next != ranges.end()) {
    return Bad(
        absl::StrCat("its files hold elements twice: ",
                     std::string(Name(std::get<0>(*next))), " of tensor ",
                     base::Quoted(manifest_.tensors[std::get<1>(*next)].name)));
  }
  for (size_t rank = 0; rank < cursors.size(); ++rank) {
    if (cursors[rank] == 1) continue;
    return Bad(absl::StrCat("its files hold ", cursors[rank],
                            " cursors of rank ", rank));
  }
  return absl::OkStatus();
}

absl::Status SnapshotReader::ReadSection(Shard& shard,
                                         const StoredSection& section,
                                         Sink sink,
                                         const std::atomic<bool>* cancelled) {
  XXH3_state_t* const raw = XXH3_createState();
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hash(
      raw, XXH3_freeState);
  if (hash == nullptr) return absl::ResourceExhaustedError("out of memory");
  XXH3_64bits_reset(hash.get());
  for (uint64_t at = 0; at < section.size_bytes;) {
    if (cancelled != nullptr && cancelled->load()) {
      return absl::CancelledError("reading a snapshot was given up");
    }
    const auto slice = std::span(slice_).first(
        std::min<uint64_t>(slice_.size(), section.size_bytes - at));
    RETURN_IF_ERROR(shard.file->ReadAt(section.offset + at, slice));
    XXH3_64bits_update(hash.get(), slice.data(), slice.size());
    RETURN_IF_ERROR(sink(section, at, slice));
    at += slice.size();
  }
  if (XXH3_64bits_digest(hash.get()) == section.checksum ||
      BALLAST_SABOTAGED("snapshot.unverified")) {
    return absl::OkStatus();
  }
  const std::string what =
      section.kind == Kind::kCursor
          ? absl::StrCat("the cursor of rank ", section.tensor)
          : absl::StrCat(std::string(Name(section.kind)), " of tensor ",
                         base::Quoted(manifest_.tensors[section.tensor].name),
                         ", elements [", section.begin, ", ", section.end, ")");
  return Bad(absl::StrCat(shard.path, ": ", what,
                          ", is not what was written (checksum): take another "
                          "snapshot"));
}

absl::Status SnapshotReader::Read(Wanted wanted, Sink sink,
                                  const std::atomic<bool>* cancelled) {
  for (int shard = 0; shard < num_shards(); ++shard) {
    RETURN_IF_ERROR(ReadShard(shard, wanted, sink, cancelled));
  }
  return absl::OkStatus();
}

absl::Status SnapshotReader::ReadShard(int shard, Wanted wanted, Sink sink,
                                       const std::atomic<bool>* cancelled) {
  for (const StoredSection& section : shards_[shard].sections) {
    if (!wanted(section)) continue;
    RETURN_IF_ERROR(ReadSection(shards_[shard], section, sink, cancelled));
  }
  return absl::OkStatus();
}

}  // namespace ballast::snapshot
