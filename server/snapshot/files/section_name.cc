#include "server/snapshot/files/section_name.h"

#include <charconv>

#include "absl/strings/str_cat.h"

namespace ballast::snapshot {
namespace {

template <typename Number>
bool ParseNumber(std::string_view text, Number* value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end && *value >= 0;
}

std::optional<Kind> KindOf(std::string_view name) {
  for (const Kind kind : {Kind::kMaster, Kind::kM, Kind::kV, Kind::kPublished,
                          Kind::kResidual, Kind::kCursor}) {
    if (Name(kind) == name) return kind;
  }
  return std::nullopt;
}

}  // namespace

std::string_view Name(Kind kind) {
  switch (kind) {
    case Kind::kMaster:
      return "master";
    case Kind::kM:
      return "m";
    case Kind::kV:
      return "v";
    case Kind::kPublished:
      return "published";
    case Kind::kResidual:
      return "residual";
    case Kind::kCursor:
      return "cursor";
  }
  return "unknown";
}

std::string ToText(const SectionName& name) {
  const std::string kind(Name(name.kind));
  if (name.kind == Kind::kCursor) return absl::StrCat(kind, ":", name.rank);
  return absl::StrCat(
      kind, name.kind == Kind::kResidual ? absl::StrCat(".", name.rank) : "",
      ":", name.tensor, "[", name.begin, ":", name.end, "]");
}

std::optional<SectionName> ParseSectionName(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::string_view head = text.substr(0, colon);
  const size_t dot = head.find('.');
  const std::optional<Kind> kind = KindOf(head.substr(0, dot));
  if (!kind.has_value()) return std::nullopt;
  SectionName name;
  name.kind = *kind;
  if (dot != std::string_view::npos &&
      !ParseNumber(head.substr(dot + 1), &name.rank)) {
    return std::nullopt;
  }
  const std::string_view rest = text.substr(colon + 1);
  bool is_good = false;
  if (name.kind == Kind::kCursor) {
    is_good = ParseNumber(rest, &name.rank);
  } else if (const size_t open = rest.rfind('[');
             open != std::string_view::npos && rest.ends_with(']')) {
    name.tensor = rest.substr(0, open);
    const std::string_view range =
        rest.substr(open + 1, rest.size() - open - 2);
    const size_t middle = range.find(':');
    is_good = middle != std::string_view::npos &&
              ParseNumber(range.substr(0, middle), &name.begin) &&
              ParseNumber(range.substr(middle + 1), &name.end) &&
              name.begin <= name.end;
  }
  // The one way to write it: no signs, no leading zeros.
  if (!is_good || ToText(name) != text) return std::nullopt;
  return name;
}

}  // namespace ballast::snapshot
