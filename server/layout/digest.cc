#include "server/layout/digest.h"

#include <array>

#include "absl/strings/str_cat.h"

namespace ballast::layout {

Digest::Digest() : state_(XXH3_createState()) {
  XXH3_64bits_reset(state_.get());
}

Digest& Digest::Add(int64_t value) {
  std::array<unsigned char, 8> bytes;
  for (int i = 0; i < 8; ++i) {
    bytes[i] =
        static_cast<unsigned char>(static_cast<uint64_t>(value) >> 8 * i);
  }
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
  return *this;
}

Digest& Digest::Add(std::string_view text) {
  Add(static_cast<int64_t>(text.size()));
  XXH3_64bits_update(state_.get(), text.data(), text.size());
  return *this;
}

std::string Digest::ToHex() const {
  return absl::StrCat(
      absl::Hex(XXH3_64bits_digest(state_.get()), absl::kZeroPad16));
}

}  // namespace ballast::layout
