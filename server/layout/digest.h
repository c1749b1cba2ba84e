// A 64-bit hash (XXH3) over values written in one canonical form, fixed-width
// little-endian with lengths before sequences, so that it is equal on every
// machine and two different lists never write the same bytes.
//
// Threading: thread-compatible.
#ifndef SERVER_LAYOUT_DIGEST_H_
#define SERVER_LAYOUT_DIGEST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/base/xxh3.h"

namespace ballast::layout {

class Digest {
 public:
  Digest();

  Digest& Add(int64_t value);
  Digest& Add(std::string_view text);

  // 16 hex digits of all that was added so far.
  std::string ToHex() const;

 private:
  struct FreeState {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, FreeState> state_;
};

}  // namespace ballast::layout

#endif  // SERVER_LAYOUT_DIGEST_H_
