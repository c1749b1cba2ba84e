#include "server/optimizer/shard_state.h"

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/control_block.h"
#include "server/base/status_macros.h"
#include "server/device/kept_version.h"
#include "server/optimizer/scalar_slots.h"

namespace ballast::optimizer {
namespace {

constexpr uint64_t kMagic = 0x31545453'4c4c4142;  // BALLSTT1

struct StateHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t kind;  // kernels::OptimizerKind
  uint32_t num_moments;
  uint32_t max_cursors;
  int64_t elements;  // of each array
  uint64_t slots_offset;
  uint64_t arrays_offset;
  uint64_t array_stride;
  char layout_digest[16];
};
static_assert(sizeof(StateHeader) <= proto::kPageSize);

uint64_t RoundToPage(uint64_t bytes) {
  return (bytes + proto::kPageSize - 1) / proto::kPageSize * proto::kPageSize;
}

StateHeader MakeHeader(const layout::Layout& layout, NodeRank node,
                       kernels::OptimizerKind kind, bool has_momentum) {
  StateHeader header = {};
  header.magic = kMagic;
  header.version = ShardState::kVersion;
  header.kind = static_cast<uint32_t>(kind);
  header.num_moments = kernels::StateArrays(kind, has_momentum);
  header.max_cursors = layout.topology().local_world_size;
  header.elements = layout.state_elements(node);
  header.slots_offset = proto::kPageSize;
  header.arrays_offset =
      header.slots_offset +
      RoundToPage(ScalarSlots::SizeBytes(header.max_cursors));
  header.array_stride = RoundToPage(header.elements * sizeof(float));
  layout.digest().copy(header.layout_digest, sizeof(header.layout_digest));
  return header;
}

class DeviceShardState final : public ShardState {
 public:
  DeviceShardState(const StateHeader& header,
                   std::unique_ptr<device::SharedBuffer> buffer)
      : kind_(static_cast<kernels::OptimizerKind>(header.kind)),
        num_moments_(header.num_moments),
        buffer_(std::move(buffer)),
        slots_(buffer_->bytes().subspan(
                   header.slots_offset,
                   ScalarSlots::SizeBytes(header.max_cursors)),
               header.max_cursors) {
    for (int i = 0; i < num_moments_ + 2; ++i) {
      std::byte* begin = buffer_->bytes().data() + header.arrays_offset +
                         i * header.array_stride;
      arrays_.emplace_back(reinterpret_cast<float*>(begin), header.elements);
    }
    if (buffer_->is_adopted()) scalars_ = slots_.Read().value_or(Scalars());
  }

  kernels::OptimizerKind kind() const override { return kind_; }
  int num_moments() const override { return num_moments_; }
  std::span<float> master() override { return arrays_[0]; }
  std::span<float> moment(int index) override { return arrays_[1 + index]; }
  std::span<float> gradient() override { return arrays_.back(); }
  uint64_t size_bytes() const override { return buffer_->size_bytes(); }

  const Scalars& scalars() const override { return scalars_; }

  absl::Status Commit(Scalars scalars) override {
    RETURN_IF_ERROR(slots_.Write(scalars));
    scalars_ = std::move(scalars);
    return absl::OkStatus();
  }

 private:
  const kernels::OptimizerKind kind_;
  const int num_moments_;
  const std::unique_ptr<device::SharedBuffer> buffer_;
  std::vector<std::span<float>> arrays_;  // master, moments, gradient
  ScalarSlots slots_;
  Scalars scalars_;  // what the slots hold
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShardState>> ShardState::Create(
    device::Device* device, const layout::Layout& layout, NodeRank node,
    kernels::OptimizerKind kind, bool has_momentum) {
  if (!device->capabilities().is_host_addressable) {
    return absl::UnimplementedError(absl::StrCat(
        "optimizer state on device \"", device->capabilities().name,
        "\" comes with the GPU path; this version keeps it in host memory"));
  }
  const StateHeader header = MakeHeader(layout, node, kind, has_momentum);
  const uint64_t size =
      header.arrays_offset + (header.num_moments + 2) * header.array_stride;
  ASSIGN_OR_RETURN(std::unique_ptr<device::SharedBuffer> buffer,
                   device->AllocateShared(size, "optimizer state"));
  if (!buffer->is_adopted()) {
    std::memcpy(buffer->bytes().data(), &header, sizeof(header));
  } else {
    StateHeader found;
    std::memcpy(&found, buffer->bytes().data(), sizeof(found));
    if (found.magic == kMagic) {
      RETURN_IF_ERROR(device::CheckKeptVersion(kWhat, found.version, kVersion));
    }
    if (std::memcmp(&found, &header, sizeof(header)) != 0) {
      return absl::DataLossError(
          "the optimizer state is damaged, or that of another layout or "
          "optimizer");
    }
  }
  return std::make_unique<DeviceShardState>(header, std::move(buffer));
}

}  // namespace ballast::optimizer
