#include "server/base/names.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"

namespace ballast::base {
namespace {

constexpr size_t kMaxQuotedBytes = 64;

struct Grammar {
  absl::string_view what;
  absl::string_view remedy;
  size_t max_bytes;
  bool allows_leading_underscore;
  absl::string_view punctuation;  // beside letters and digits, not first
};

constexpr Grammar kJobGrammar = {
    "job name",
    "use 1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or "
    "digit",
    kMaxJobNameBytes, false, "._-"};
constexpr Grammar kTenantGrammar = {
    "tenant name",
    "use 1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or "
    "digit",
    kMaxJobNameBytes, false, "._-"};
constexpr Grammar kTensorGrammar = {
    "tensor name",
    "use 1 to 255 letters, digits, '.', '_', '-', ':' or '/', beginning with "
    "a letter, digit or '_'",
    kMaxTensorNameBytes, true, "._-:/"};

absl::Status Refuse(const Grammar& grammar, std::string_view name,
                    absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat(
      grammar.what, " ", Quoted(name), " ", rule, ": ", grammar.remedy));
}

absl::Status Check(const Grammar& grammar, std::string_view name) {
  if (name.empty()) return Refuse(grammar, name, "is empty");
  if (name.size() > grammar.max_bytes) {
    return Refuse(grammar, name,
                  absl::StrCat("has ", name.size(), " bytes, at most ",
                               grammar.max_bytes, " are allowed"));
  }
  const bool is_first_fine =
      absl::ascii_isalnum(name[0]) ||
      (grammar.allows_leading_underscore && name[0] == '_');
  if (!is_first_fine) {
    return Refuse(grammar, name,
                  "begins with a character that cannot begin it");
  }
  for (size_t i = 0; i < name.size(); ++i) {
    if (absl::ascii_isalnum(name[i]) ||
        grammar.punctuation.find(name[i]) != absl::string_view::npos) {
      continue;
    }
    return Refuse(grammar, name,
                  absl::StrCat("has a forbidden character at byte ", i));
  }
  if (name.find("..") != std::string_view::npos) {
    return Refuse(grammar, name, "contains \"..\"");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckJobName(std::string_view name) {
  return Check(kJobGrammar, name);
}

absl::Status CheckTenantName(std::string_view name) {
  return Check(kTenantGrammar, name);
}

absl::Status CheckTensorName(std::string_view name) {
  RETURN_IF_ERROR(Check(kTensorGrammar, name));
  if (name.find("//") != std::string_view::npos ||
      name.find("/.") != std::string_view::npos || name.back() == '/') {
    return Refuse(kTensorGrammar, name,
                  "has a '/' that is followed by '/', '.' or nothing");
  }
  return absl::OkStatus();
}

std::string Quoted(std::string_view text) {
  const bool is_cut = text.size() > kMaxQuotedBytes;
  const std::string_view shown = text.substr(0, kMaxQuotedBytes);
  return absl::StrCat(
      "\"", absl::CHexEscape(absl::string_view(shown.data(), shown.size())),
      "\"", is_cut ? "..." : "");
}

}  // namespace ballast::base
