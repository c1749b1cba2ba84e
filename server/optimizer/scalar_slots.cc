#include "server/optimizer/scalar_slots.h"

#include <atomic>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "proto/control_block.h"
#include "server/base/failpoint.h"
#include "server/base/xxh3.h"

namespace ballast::optimizer {
namespace {

constexpr size_t kHeaderBytes = 24;  // checksum, sequence, bytes
constexpr size_t kFixedBytes = 32;   // of what follows
constexpr size_t kGroupBytes = 80;

uint64_t SlotBytes(int max_cursors) {
  const uint64_t bytes =
      kHeaderBytes + kFixedBytes + proto::kMaxParamGroups * kGroupBytes +
      static_cast<uint64_t>(max_cursors) * (4 + proto::kMaxCursorBytes);
  return (bytes + 63) / 64 * 64;
}

template <typename T>
void Append(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendGroup(const kernels::HyperParameters& group, std::string* out) {
  for (const double value :
       {group.lr, group.beta1, group.beta2, group.eps, group.weight_decay,
        group.momentum, group.dampening, group.nesterov ? 1.0 : 0.0,
        group.lr_decay, group.initial_accumulator_value}) {
    Append(value, out);
  }
}

// Takes values off the front; false once there are too few bytes.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  bool Take(T* value) {
    if (rest_.size() < sizeof(T)) return false;
    std::memcpy(value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return true;
  }

  bool TakeText(std::string* text) {
    uint32_t size = 0;
    if (!Take(&size) || rest_.size() < size) return false;
    text->assign(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return true;
  }

  bool is_empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

bool TakeGroup(Reader* reader, kernels::HyperParameters* group) {
  double nesterov = 0;
  for (double* value :
       {&group->lr, &group->beta1, &group->beta2, &group->eps,
        &group->weight_decay, &group->momentum, &group->dampening, &nesterov,
        &group->lr_decay, &group->initial_accumulator_value}) {
    if (!reader->Take(value)) return false;
  }
  group->nesterov = nesterov != 0;
  return true;
}

std::optional<Scalars> ParsePayload(std::string_view payload,
                                    uint32_t max_cursors) {
  Reader reader(payload);
  Scalars scalars;
  int64_t generation = 0;
  int64_t step = 0;
  uint32_t num_groups = 0;
  uint32_t num_cursors = 0;
  if (!reader.Take(&generation) || !reader.Take(&step) ||
      !reader.Take(&scalars.optimizer_step) || !reader.Take(&num_groups) ||
      !reader.Take(&num_cursors) || num_groups > proto::kMaxParamGroups ||
      num_cursors > max_cursors) {
    return std::nullopt;
  }
  scalars.generation = Generation(generation);
  scalars.step = Step(step);
  scalars.groups.resize(num_groups);
  for (kernels::HyperParameters& group : scalars.groups) {
    if (!TakeGroup(&reader, &group)) return std::nullopt;
  }
  scalars.cursors.resize(num_cursors);
  for (std::string& cursor : scalars.cursors) {
    if (!reader.TakeText(&cursor)) return std::nullopt;
  }
  if (!reader.is_empty()) return std::nullopt;
  return scalars;
}

}  // namespace

struct ScalarSlots::Slot {
  uint64_t sequence = 0;  // 0: not valid
  std::string_view payload;
};

uint64_t ScalarSlots::SizeBytes(int max_cursors) {
  return 2 * SlotBytes(max_cursors);
}

ScalarSlots::ScalarSlots(std::span<std::byte> memory, int max_cursors)
    : memory_(memory), max_cursors_(max_cursors) {}

ScalarSlots::Slot ScalarSlots::Parse(int index) const {
  const uint64_t slot_bytes = SlotBytes(max_cursors_);
  const char* begin =
      reinterpret_cast<const char*>(memory_.data()) + index * slot_bytes;
  uint64_t checksum = 0;
  uint64_t bytes = 0;
  Slot slot;
  std::memcpy(&checksum, begin, 8);
  std::memcpy(&slot.sequence, begin + 8, 8);
  std::memcpy(&bytes, begin + 16, 8);
  if (slot.sequence == 0 || bytes > slot_bytes - kHeaderBytes ||
      XXH3_64bits(begin + 8, bytes + 16) != checksum) {
    return {};
  }
  slot.payload = std::string_view(begin + kHeaderBytes, bytes);
  return slot;
}

std::optional<Scalars> ScalarSlots::Read() const {
  const Slot slots[2] = {Parse(0), Parse(1)};
  const Slot& newer = slots[slots[1].sequence > slots[0].sequence ? 1 : 0];
  if (newer.sequence == 0) return std::nullopt;
  return ParsePayload(newer.payload, max_cursors_);
}

void ScalarSlots::Serialize(const Scalars& scalars, uint64_t sequence) {
  buffer_.clear();
  Append(sequence, &buffer_);
  Append(uint64_t{0}, &buffer_);  // bytes, below
  Append(scalars.generation.value(), &buffer_);
  Append(scalars.step.value(), &buffer_);
  Append(scalars.optimizer_step, &buffer_);
  Append(static_cast<uint32_t>(scalars.groups.size()), &buffer_);
  Append(static_cast<uint32_t>(scalars.cursors.size()), &buffer_);
  for (const kernels::HyperParameters& group : scalars.groups) {
    AppendGroup(group, &buffer_);
  }
  for (const std::string& cursor : scalars.cursors) {
    Append(static_cast<uint32_t>(cursor.size()), &buffer_);
    buffer_.append(cursor);
  }
  const uint64_t bytes = buffer_.size() - 16;
  std::memcpy(buffer_.data() + 8, &bytes, 8);
}

absl::Status ScalarSlots::Write(const Scalars& scalars) {
  if (scalars.groups.size() > proto::kMaxParamGroups ||
      scalars.cursors.size() > static_cast<size_t>(max_cursors_)) {
    return absl::InvalidArgumentError(absl::StrCat(
        scalars.groups.size(), " param groups and ", scalars.cursors.size(),
        " cursors: at most ", proto::kMaxParamGroups, " and ", max_cursors_,
        " are kept"));
  }
  for (const std::string& cursor : scalars.cursors) {
    if (cursor.size() > proto::kMaxCursorBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a cursor of ", cursor.size(), " bytes: at most ",
                       proto::kMaxCursorBytes, " are kept"));
    }
  }
  const uint64_t sequences[2] = {Parse(0).sequence, Parse(1).sequence};
  const int older = sequences[0] <= sequences[1] ? 0 : 1;
  Serialize(scalars, sequences[1 - older] + 1);

  std::byte* slot = memory_.data() + older * SlotBytes(max_cursors_);
  std::memcpy(slot + 8, buffer_.data(), buffer_.size());
  BALLAST_FAILPOINT("optimizer.scalars.written");
  const uint64_t checksum = XXH3_64bits(buffer_.data(), buffer_.size());
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(slot))
      .store(checksum, std::memory_order_release);
  return absl::OkStatus();
}

}  // namespace ballast::optimizer
