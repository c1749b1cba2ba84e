#include "server/daemon/two_slots.h"

#include <atomic>
#include <cstring>

#include "server/base/failpoint.h"

namespace ballast::daemon {
namespace {

constexpr size_t kHeaderBytes = 24;

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

uint64_t Checksum(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return hash;
}

std::span<std::byte> TwoSlots::slot(uint64_t sequence) const {
  const size_t size = memory_.size() / 2;
  return memory_.subspan((sequence & 1) * size, size);
}

size_t TwoSlots::max_bytes() const { return memory_.size() / 2 - kHeaderBytes; }

std::optional<std::string> TwoSlots::Read() {
  std::optional<std::string> text;
  for (const uint64_t index : {0, 1}) {
    const std::span<const std::byte> bytes = slot(index);
    uint64_t checksum = 0;
    uint64_t sequence = 0;
    uint64_t size = 0;
    std::memcpy(&checksum, bytes.data(), 8);
    std::memcpy(&sequence, bytes.data() + 8, 8);
    std::memcpy(&size, bytes.data() + 16, 8);
    if (sequence <= sequence_ || size > max_bytes() ||
        Checksum(TextOf(bytes.subspan(8, size + 16))) != checksum) {
      continue;
    }
    text = TextOf(bytes.subspan(kHeaderBytes, size));
    sequence_ = sequence;
  }
  return text;
}

void TwoSlots::Write(std::string_view text) {
  const uint64_t sequence = sequence_ + 1;
  const uint64_t size = text.size();
  std::string bytes(16, '\0');
  std::memcpy(bytes.data(), &sequence, 8);
  std::memcpy(bytes.data() + 8, &size, 8);
  bytes += text;
  std::byte* const out = slot(sequence).data();
  std::memcpy(out + 8, bytes.data(), bytes.size());
  BALLAST_FAILPOINT("daemon.outcome.written");
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(out))
      .store(Checksum(bytes), std::memory_order_release);
  sequence_ = sequence;
}

}  // namespace ballast::daemon
