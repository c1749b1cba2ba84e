// Headers of safetensors files, written and read without trust:
//
//   0    N        uint64, little-endian
//   8    header   N bytes of JSON: {"__metadata__": {key: text, …},
//                 NAME: {"dtype": "F32", "shape": [2, 3],
//                        "data_offsets": [begin, end]}, …}, spaces at the end
//   8+N  data     sections one after the other, without gap or overlap
//
// Of a hostile header (I27): the size is compared with the file's before
// anything is allocated; no document tree is built; nothing deep, repeated,
// unknown, negative, overlapping, missing or beyond the end is taken.
//
// Threading: pure functions; ReadHeader blocks.
// Errors: DataLoss says where and what.
#ifndef SERVER_SNAPSHOT_FILES_SAFETENSORS_H_
#define SERVER_SNAPSHOT_FILES_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "server/snapshot/files/file_system.h"

namespace ballast::snapshot {

enum class ElementType : uint8_t { kF32, kBF16, kF16, kU8 };

constexpr uint64_t SizeOf(ElementType type) {
  return type == ElementType::kF32 ? 4 : type == ElementType::kU8 ? 1 : 2;
}
std::string_view Name(ElementType type);  // "F32"
ElementType ToElementType(kernels::DType dtype);

struct Section {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes, from the start of the data
  uint64_t end = 0;

  uint64_t size_bytes() const { return end - begin; }
  bool operator==(const Section&) const = default;
};

using Metadata = std::map<std::string, std::string>;

struct Header {
  std::vector<Section> sections;  // by begin; they tile [0, data_bytes)
  Metadata metadata;
  uint64_t data_begin = 0;  // of the data in the file
  uint64_t checksum = 0;    // of all bytes before the data

  uint64_t data_bytes() const {
    return sections.empty() ? 0 : sections.back().end;
  }
};

// The first bytes of the file, up to its data (a multiple of 8). Names and
// metadata are plain ASCII without quotes and backslashes.
std::string MakeHeader(std::span<const Section> sections,
                       const Metadata& metadata);

// `bytes`: as MakeHeader gives them. `file_bytes`: of the whole file.
absl::StatusOr<Header> ParseHeader(std::string_view bytes, uint64_t file_bytes);

absl::StatusOr<Header> ReadHeader(File& file);

// XXH3-64, of headers, manifests and sections.
uint64_t Checksum(std::string_view bytes);
std::string ToHex16(uint64_t value);
// Exactly 16 lower-case digits.
bool FromHex16(std::string_view text, uint64_t* value);

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_FILES_SAFETENSORS_H_
