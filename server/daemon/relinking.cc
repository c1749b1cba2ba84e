#include "server/daemon/relinking.h"

#include "absl/strings/str_cat.h"

namespace ballast::daemon {

bool Relinking::Begin(const absl::Status& why, absl::Time now) {
  if (is_active()) return false;
  since_ = now;
  why_ = why;
  return true;
}

std::string Relinking::Describe(absl::Time now) const {
  if (!is_active()) return "";
  const auto seconds = [](absl::Duration duration) {
    return absl::FormatDuration(absl::Trunc(duration, absl::Seconds(1)));
  };
  return absl::StrCat("the nodes have lost one another ", seconds(now - since_),
                      " ago (", why_.message(), ") and wait ",
                      seconds(deadline() - now), " more to meet again");
}

absl::Status Relinking::Expired(const std::string& missing) const {
  std::string text(why_.message());
  absl::StrAppend(
      &text, "; the nodes did not meet again within ",
      "transport.relink_timeout = ", absl::FormatDuration(timeout_));
  if (!missing.empty()) absl::StrAppend(&text, ": ", missing);
  return absl::UnavailableError(text);
}

}  // namespace ballast::daemon
