// Bytes as lower-case hexadecimal text and back.
#ifndef SERVER_BASE_HEX_H_
#define SERVER_BASE_HEX_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ballast::base {

std::string ToHex(std::span<const uint8_t> bytes);

// Either case; nullopt unless `text` is an even number of hex digits.
std::optional<std::vector<uint8_t>> FromHex(std::string_view text);

}  // namespace ballast::base

#endif  // SERVER_BASE_HEX_H_
