// What a snapshot is of, and which files it consists of: manifest.json, the
// last file to be written. Text, version 2:
//
//   {"checksum":"0123456789abcdef","ballast":{…}}
//                                 ^ XXH3-64 of everything from here to the end
//
// Each file is named with its size and the checksum of its header, which holds
// the checksums of its sections: one changed byte anywhere is found.
//
// Threading: pure functions.
// Errors: DataLoss (damaged, cut short, not of this form: says where),
// Unimplemented (a later version). Version 1, without residuals and budget, is
// read too.
#ifndef SERVER_SNAPSHOT_FILES_MANIFEST_H_
#define SERVER_SNAPSHOT_FILES_MANIFEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "kernels/hyper_parameters.h"

namespace ballast::snapshot {

inline constexpr int kManifestVersion = 2;
inline constexpr char kManifestName[] = "manifest.json";
inline constexpr uint64_t kMaxManifestBytes = 64 << 20;
// Of the parts below; what is beyond them is refused.
inline constexpr size_t kMaxTensors = 100'000;
inline constexpr size_t kMaxGroups = 256;
inline constexpr int kMaxCalm = 1 << 20;
inline constexpr int kMaxNodes = 1024;
inline constexpr int64_t kMaxElements = int64_t{1} << 40;

struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape;
  kernels::DType dtype = kernels::DType::kFloat32;
  bool trainable = true;
  int group = 0;

  bool operator==(const TensorInfo&) const = default;
};

// Of a shape that was checked.
int64_t NumElements(const TensorInfo& tensor);

// What an error budget had made of a tensor (membership/error_budget.h).
struct BudgetInfo {
  int32_t tensor = 0;  // index into the manifest's
  std::string path;    // "gradients" or "weights"
  std::string codec;   // that was in force
  int calm = 0;        // steps

  bool operator==(const BudgetInfo&) const = default;
};

struct FileInfo {
  std::string name;
  uint64_t size_bytes = 0;
  uint64_t header_checksum = 0;

  bool operator==(const FileInfo&) const = default;
};

struct Manifest {
  std::string id;  // of this writing
  std::string job;
  std::string tenant;
  uint32_t uid = 0;  // whose job it was
  int64_t step = 0;  // the weights' version
  int64_t generation = 0;
  int64_t optimizer_step = 0;
  int num_nodes = 1;
  int local_world_size = 1;
  std::string exchange;
  kernels::OptimizerKind optimizer = kernels::OptimizerKind::kSgd;
  int num_moments = 0;
  std::vector<kernels::HyperParameters> groups;
  bool has_published = false;      // of trainable tensors too
  bool has_residuals = false;      // of every node
  std::vector<BudgetInfo> budget;  // those that are not as the policy says
  std::vector<TensorInfo> tensors;
  std::vector<FileInfo> files;  // by node rank

  int world_size() const { return num_nodes * local_world_size; }
  bool operator==(const Manifest&) const = default;
};

std::string ToText(const Manifest& manifest);
absl::StatusOr<Manifest> ParseManifest(std::string_view text);

// "shard-00001-of-00003.safetensors"
std::string ShardName(int node, int num_nodes);

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_FILES_MANIFEST_H_
