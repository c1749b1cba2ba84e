#include "server/optimizer/residuals.h"

#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/control_block.h"
#include "server/base/status_macros.h"
#include "server/device/kept_version.h"

namespace ballast::optimizer {
namespace {

constexpr uint64_t kMagic = 0x31534552'4c4c4142;  // BALLRES1

struct ResidualsHeader {
  uint64_t magic;
  uint32_t version;
  int32_t node;
  int64_t elements;  // of each version
  uint64_t arrays_offset;
  uint64_t array_stride;
  char layout_digest[16];
};
static_assert(sizeof(ResidualsHeader) <= proto::kPageSize);

int64_t Elements(const layout::Layout& layout) {
  int64_t elements = 0;
  for (const layout::Bucket& bucket : layout.buckets()) {
    elements += bucket.scratch_elements;
  }
  return elements;
}

uint64_t Stride(const layout::Layout& layout) {
  const uint64_t bytes = Elements(layout) * sizeof(float);
  return (bytes + proto::kPageSize - 1) / proto::kPageSize * proto::kPageSize;
}

}  // namespace

uint64_t Residuals::SizeBytes(const layout::Layout& layout) {
  return proto::kPageSize + 2 * Stride(layout);
}

absl::StatusOr<std::unique_ptr<Residuals>> Residuals::Create(
    device::Device* device, const layout::Layout& layout, NodeRank node) {
  if (!device->capabilities().is_host_addressable) {
    return absl::UnimplementedError(absl::StrCat(
        "gradient residuals on device \"", device->capabilities().name,
        "\" come with the GPU path; this version keeps them in host memory"));
  }
  ASSIGN_OR_RETURN(
      std::unique_ptr<device::SharedBuffer> buffer,
      device->AllocateShared(SizeBytes(layout), "gradient residuals"));
  ResidualsHeader header = {};
  header.magic = kMagic;
  header.version = kVersion;
  header.node = node.value();
  header.elements = Elements(layout);
  header.arrays_offset = proto::kPageSize;
  header.array_stride = Stride(layout);
  layout.digest().copy(header.layout_digest, sizeof(header.layout_digest));
  if (!buffer->is_adopted()) {
    std::memcpy(buffer->bytes().data(), &header, sizeof(header));
  } else {
    ResidualsHeader found;
    std::memcpy(&found, buffer->bytes().data(), sizeof(found));
    if (found.magic == kMagic) {
      RETURN_IF_ERROR(device::CheckKeptVersion(kWhat, found.version, kVersion));
    }
    if (std::memcmp(&found, &header, sizeof(header)) != 0) {
      return absl::DataLossError(
          "the gradient residuals are damaged, or those of another layout");
    }
  }
  return std::unique_ptr<Residuals>(new Residuals(std::move(buffer), layout));
}

Residuals::Residuals(std::unique_ptr<device::SharedBuffer> buffer,
                     const layout::Layout& layout)
    : buffer_(std::move(buffer)) {
  for (size_t i = 0; i < versions_.size(); ++i) {
    std::byte* const begin =
        buffer_->bytes().data() + proto::kPageSize + i * Stride(layout);
    versions_[i] = {reinterpret_cast<float*>(begin),
                    static_cast<size_t>(Elements(layout))};
  }
  int64_t offset = 0;
  for (const layout::Bucket& bucket : layout.buckets()) {
    offsets_.push_back(offset);
    offset += bucket.scratch_elements;
  }
}

}  // namespace ballast::optimizer
