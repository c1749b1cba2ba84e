// A short text in memory that outlives the process, written again and again: a
// write that is cut anywhere leaves the text before it. Two slots, written in
// turn, native little-endian, each
//
//   0    checksum    FNV-1a of all that follows
//   8    sequence    1, 2, …; the valid slot with the larger one counts
//   16   bytes       24   the text
//
// Threading: control thread only. Borrows the memory.
#ifndef SERVER_DAEMON_TWO_SLOTS_H_
#define SERVER_DAEMON_TWO_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ballast::daemon {

uint64_t Checksum(std::string_view text);

class TwoSlots {
 public:
  // Both slots together, aligned to 16 bytes.
  explicit TwoSlots(std::span<std::byte> memory) : memory_(memory) {}

  // Whatever an earlier life left, before the first Write; nullopt: nothing
  // that is whole.
  std::optional<std::string> Read();

  size_t max_bytes() const;
  // At most max_bytes().
  void Write(std::string_view text);

 private:
  std::span<std::byte> slot(uint64_t sequence) const;

  const std::span<std::byte> memory_;
  uint64_t sequence_ = 0;  // of the last write; slot sequence & 1
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_TWO_SLOTS_H_
