#include "server/daemon/config/units.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ballast::daemon {
namespace {

struct Unit {
  std::string_view name;
  uint64_t factor;
};

constexpr Unit kUnits[] = {
    {"TiB", uint64_t{1} << 40},
    {"GiB", uint64_t{1} << 30},
    {"MiB", uint64_t{1} << 20},
    {"KiB", uint64_t{1} << 10},
    {"GB", 1'000'000'000},
    {"MB", 1'000'000},
    {"kB", 1'000},
    {"B", 1},
};

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() > end.size() &&
         text.substr(text.size() - end.size()) == end;
}

}  // namespace

std::optional<uint64_t> ParseSize(std::string_view text) {
  uint64_t factor = 1;
  for (const Unit& unit : kUnits) {
    if (!EndsWith(text, unit.name)) continue;
    factor = unit.factor;
    text.remove_suffix(unit.name.size());
    if (text.back() == ' ') text.remove_suffix(1);
    break;
  }
  uint64_t number = 0;
  // Digits only: SimpleAtoi would take signs and blanks.
  if (text.empty() ||
      text.find_first_not_of("0123456789") != std::string_view::npos ||
      !absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &number) ||
      number > UINT64_MAX / factor) {
    return std::nullopt;
  }
  return number * factor;
}

std::string FormatSize(uint64_t size_bytes) {
  for (const Unit& unit : kUnits) {
    if (unit.name.size() != 3) break;  // binary units only
    if (size_bytes != 0 && size_bytes % unit.factor == 0) {
      return absl::StrCat(size_bytes / unit.factor, std::string(unit.name));
    }
  }
  return absl::StrCat(size_bytes);
}

std::optional<absl::Duration> ParseDuration(std::string_view text) {
  absl::Duration duration;
  if (!absl::ParseDuration(absl::string_view(text.data(), text.size()),
                           &duration) ||
      duration < absl::ZeroDuration() || duration == absl::InfiniteDuration()) {
    return std::nullopt;
  }
  return duration;
}

}  // namespace ballast::daemon
