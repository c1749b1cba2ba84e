// Messages that routed exchanges pack and forward, of exchanges that take
// turns (ExchangeSpec::turn): the n-th message of each lies in the same memory,
// as long as the longest so far. What is outgrown goes with the exchanges that
// have it.
//
// Threading: thread-compatible.
#ifndef SERVER_TRANSPORT_ROUTED_TURN_MEMORY_H_
#define SERVER_TRANSPORT_ROUTED_TURN_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace ballast::transport {

class TurnMemory {
 public:
  // Shared: by the exchanges that take turns, and by this for the next one.
  using Block = std::shared_ptr<std::byte[]>;

  // The n-th message of an exchange, at least so long.
  Block Take(size_t n, uint64_t bytes) {
    if (n >= blocks_.size()) blocks_.resize(n + 1);
    Sized& sized = blocks_[n];
    if (sized.block == nullptr || sized.bytes < bytes) {
      sized = {std::make_shared<std::byte[]>(bytes), bytes};
    }
    return sized.block;
  }
  // Of those that are handed out from now on.
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const Sized& sized : blocks_) sum += sized.bytes;
    return sum;
  }

 private:
  struct Sized {
    Block block;
    uint64_t bytes = 0;
  };
  std::vector<Sized> blocks_;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_ROUTED_TURN_MEMORY_H_
