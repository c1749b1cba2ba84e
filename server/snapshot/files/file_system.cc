#include "server/snapshot/files/file_system.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/base/names.h"

namespace ballast::snapshot {
namespace {

constexpr size_t kMaxComponentBytes = 255;
constexpr size_t kMaxComponents = 16;

}  // namespace

absl::StatusOr<std::vector<std::string>> SplitPath(std::string_view path) {
  if (path.empty()) return std::vector<std::string>();
  std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(path.data(), path.size()), '/');
  bool is_good = parts.size() <= kMaxComponents;
  for (const std::string& part : parts) {
    is_good = is_good && !part.empty() && part != "." && part != ".." &&
              part.size() <= kMaxComponentBytes &&
              part.find('\0') == std::string::npos;
  }
  if (is_good) return parts;
  return absl::InvalidArgumentError(absl::StrCat(
      "path ", base::Quoted(path),
      " is not a relative one of at most 16 plain names: give names without "
      "\"..\", and no leading or double \"/\""));
}

}  // namespace ballast::snapshot
