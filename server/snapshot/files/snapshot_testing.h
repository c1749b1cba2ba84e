// A small snapshot in a file system, made by hand: what it holds is a function
// of (kind, tensor, element), so that any reader can be checked against it.
#ifndef SERVER_SNAPSHOT_FILES_SNAPSHOT_TESTING_H_
#define SERVER_SNAPSHOT_FILES_SNAPSHOT_TESTING_H_

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/files/life.h"
#include "server/snapshot/files/manifest.h"
#include "server/snapshot/files/safetensors.h"
#include "server/snapshot/files/section_name.h"
#include "server/snapshot/files/snapshot_reader.h"

namespace ballast::snapshot {

inline constexpr LifeId kTestLife{0x1ea5e};

inline float ValueAt(Kind kind, int tensor, int64_t element) {
  return static_cast<float>(static_cast<int>(kind) * 1000 + tensor * 100) +
         static_cast<float>(element) / 8;
}

inline Manifest SmallManifest(int num_nodes, int local_world_size) {
  Manifest manifest;
  manifest.id = "0123456789abcdef";
  manifest.job = "job";
  manifest.tenant = "default";
  manifest.step = 7;
  manifest.generation = 1;
  manifest.optimizer_step = 6;
  manifest.num_nodes = num_nodes;
  manifest.local_world_size = local_world_size;
  manifest.exchange = "exact";
  manifest.optimizer = kernels::OptimizerKind::kAdamW;
  manifest.num_moments = 2;
  manifest.groups = {{.lr = 0.1}, {.lr = 1e-3, .weight_decay = 0.01}};
  manifest.tensors = {
      {.name = "a.weight", .shape = {3, 5}},
      {.name = "empty", .shape = {0, 4}},
      {.name = "b:bias",
       .shape = {4},
       .dtype = kernels::DType::kBFloat16,
       .group = 1},
      {.name = "frozen",
       .shape = {2},
       .dtype = kernels::DType::kFloat16,
       .trainable = false},
  };
  return manifest;
}

struct SmallSection {
  SectionName name;
  ElementType type = ElementType::kF32;
  std::string bytes;
};

inline std::string BytesOf(Kind kind, int tensor, int64_t begin, int64_t end,
                           ElementType type) {
  std::string bytes;
  for (int64_t i = begin; i < end; ++i) {
    const float value = ValueAt(kind, tensor, i);
    char raw[4];
    std::memcpy(raw, &value, 4);
    // The upper half of an fp32 is a bf16; for fp16 any two bytes do.
    if (type == ElementType::kF32) bytes.append(raw, 4);
    if (type != ElementType::kF32) bytes.append(raw + 2, 2);
  }
  return bytes;
}

// What node `n` stores: an even part of each trainable tensor, the frozen ones
// on node 0, cursors of its ranks.
inline std::vector<SmallSection> SectionsOf(const Manifest& manifest, int n) {
  std::vector<SmallSection> sections;
  const auto add = [&](Kind kind, int t, ElementType type, bool is_whole) {
    const TensorInfo& tensor = manifest.tensors[t];
    const int64_t size = NumElements(tensor);
    const int64_t begin = is_whole ? 0 : size * n / manifest.num_nodes;
    const int64_t end = is_whole ? size : size * (n + 1) / manifest.num_nodes;
    if (begin == end) return;
    sections.push_back({{kind, tensor.name, begin, end, 0},
                        type,
                        BytesOf(kind, t, begin, end, type)});
  };
  for (int k = 0; k <= manifest.num_moments; ++k) {
    for (size_t t = 0; t < manifest.tensors.size(); ++t) {
      if (!manifest.tensors[t].trainable) continue;
      add(static_cast<Kind>(k), static_cast<int>(t), ElementType::kF32, false);
    }
  }
  for (size_t t = 0; t < manifest.tensors.size(); ++t) {
    const TensorInfo& tensor = manifest.tensors[t];
    const ElementType type = ToElementType(tensor.dtype);
    if (tensor.trainable && manifest.has_published) {
      add(Kind::kPublished, static_cast<int>(t), type, false);
    } else if (!tensor.trainable && n == 0) {
      add(Kind::kPublished, static_cast<int>(t), type, true);
    }
  }
  for (int l = 0; l < manifest.local_world_size; ++l) {
    SmallSection cursor;
    cursor.name.kind = Kind::kCursor;
    cursor.name.rank = n * manifest.local_world_size + l;
    cursor.type = ElementType::kU8;
    cursor.bytes = absl::StrCat("cursor of ", cursor.name.rank);
    sections.push_back(std::move(cursor));
  }
  return sections;
}

// The whole file, as a writer leaves it.
inline std::string ShardBytes(const std::vector<SmallSection>& parts) {
  std::vector<Section> sections;
  std::string data;
  std::string checksums;
  for (const SmallSection& part : parts) {
    const int64_t count =
        static_cast<int64_t>(part.bytes.size() / SizeOf(part.type));
    sections.push_back({ToText(part.name),
                        part.type,
                        {count},
                        data.size(),
                        data.size() + part.bytes.size()});
    data += part.bytes;
    checksums += ToHex16(Checksum(part.bytes));
  }
  return MakeHeader(sections,
                    {{kFormatKey, kShardFormat}, {kChecksumsKey, checksums}}) +
         data;
}

inline absl::Status WriteWhole(FileSystem& files, const std::string& path,
                               const std::string& bytes) {
  auto file = files.Create(path);
  if (!file.ok()) return file.status();
  absl::Status status = (*file)->WriteAt(0, std::as_bytes(std::span(bytes)));
  if (status.ok()) status = (*file)->Sync();
  return status;
}

// Writes the shards to the place for them and enters them in the manifest.
inline void WriteShards(FileSystem& files, Manifest* manifest) {
  const std::string directory = TemporaryPath(manifest->job, manifest->id);
  ASSERT_TRUE(files.MakeDirectories(directory).ok());
  manifest->files.clear();
  for (int n = 0; n < manifest->num_nodes; ++n) {
    const std::string bytes = ShardBytes(SectionsOf(*manifest, n));
    const auto header =
        ParseHeader(std::string_view(bytes).substr(
                        0, 8 + static_cast<unsigned char>(bytes[0]) +
                               256 * static_cast<unsigned char>(bytes[1])),
                    bytes.size());
    ASSERT_TRUE(header.ok()) << header.status();
    const std::string name = ShardName(n, manifest->num_nodes);
    manifest->files.push_back({name, bytes.size(), header->checksum});
    ASSERT_TRUE(
        WriteWhole(files, absl::StrCat(directory, "/", name), bytes).ok());
  }
}

inline Manifest WriteSmallSnapshot(FileSystem& files, int num_nodes,
                                   int local_world_size,
                                   const std::string& name) {
  Manifest manifest = SmallManifest(num_nodes, local_world_size);
  WriteShards(files, &manifest);
  const absl::Status published =
      PublishSnapshot(files, manifest, name, kTestLife);
  EXPECT_TRUE(published.ok()) << published;
  return manifest;
}

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_FILES_SNAPSHOT_TESTING_H_
