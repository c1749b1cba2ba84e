// What a section of a shard file holds, in its name:
//
//   KIND:TENSOR[BEGIN:END]   elements of a tensor: "master:wte[0:4096]"
//   residual.NODE:TENSOR[BEGIN:END]   of what this node's gradients left over
//   cursor:RANK              bytes that a worker kept with the step
//
// Kinds: master, m and v (fp32: the master weights and the moments), published
// (in the tensor's dtype, as the workers saw it: of frozen tensors, and of all
// where weights are quantized between nodes), residual (fp32, error feedback:
// every node has one of every element).
//
// Threading: pure functions.
#ifndef SERVER_SNAPSHOT_FILES_SECTION_NAME_H_
#define SERVER_SNAPSHOT_FILES_SECTION_NAME_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ballast::snapshot {

enum class Kind : uint8_t { kMaster, kM, kV, kPublished, kResidual, kCursor };
inline constexpr int kNumTensorKinds = 5;

std::string_view Name(Kind kind);

struct SectionName {
  Kind kind = Kind::kMaster;
  std::string tensor;
  int64_t begin = 0;  // elements
  int64_t end = 0;
  int32_t rank = 0;  // of a cursor; of a residual: the node's

  bool operator==(const SectionName&) const = default;
};

std::string ToText(const SectionName& name);
// nullopt: not what ToText gives.
std::optional<SectionName> ParseSectionName(std::string_view text);

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_FILES_SECTION_NAME_H_
