#include "client/worker/opening.h"

#include "absl/strings/str_cat.h"

namespace ballast::worker {
namespace {

std::string Rounded(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(1)));
}

}  // namespace

absl::Status Opening::OnFailed(AttemptEnd how, const absl::Status& status,
                               absl::Time now) {
  last_how_ = how;
  last_ = status;
  switch (how) {
    case AttemptEnd::kFinal:
      if (num_lost_ == 0 || !absl::IsDeadlineExceeded(status)) return status;
      return absl::DeadlineExceededError(
          absl::StrCat(status.message(), "; before, ", first_loss_));
    case AttemptEnd::kAbsent:
      if (num_lost_ == 0) return status;
      break;
    case AttemptEnd::kPassing:
      break;
    case AttemptEnd::kEnded:
    case AttemptEnd::kLost:
      if (num_lost_++ > 0) break;
      lost_at_ = now;
      first_loss_ = absl::StrCat("the daemon at ", options_.address,
                                 how == AttemptEnd::kLost
                                     ? " went away while the session was "
                                     : " ended the session while it was ",
                                 "opening (", status.message(), ")");
      break;
  }
  return CheckTime(now);
}

absl::Status Opening::CheckTime(absl::Time now) const {
  if (now < patience()) return absl::OkStatus();
  return num_lost_ == 0 ? last_ : TooLate(now);
}

absl::Status Opening::TooLate(absl::Time now) const {
  std::string text = absl::StrCat(
      first_loss_, ", and it could not be opened again in the ",
      Rounded(now - lost_at_), " that were left of the open timeout of ",
      Rounded(options_.open_timeout), " (open_timeout; in Python timeout=)");
  if (num_lost_ > 1) absl::StrAppend(&text, "; lost ", num_lost_, " times");
  absl::StrAppend(&text, "; last: ", last_.message());
  // Where nobody listens that is said already, with what to do.
  if (last_how_ != AttemptEnd::kAbsent || !absl::IsUnavailable(last_)) {
    absl::StrAppend(&text,
                    "; see the daemon's log, start it again and open the "
                    "session anew");
  }
  return absl::UnavailableError(text);
}

std::string Opening::TakeNews(absl::Time now) {
  if (num_lost_ == 0 || std::exchange(is_told_, true)) return "";
  return absl::StrCat(first_loss_, ": looking for it and opening anew, for ",
                      Rounded(deadline_ - now), " at most");
}

}  // namespace ballast::worker
