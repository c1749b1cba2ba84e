#include "client/worker/connection.h"

#include <sys/un.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/hex.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"

namespace ballast::worker {
namespace {

constexpr absl::Duration kAnswerLimit = absl::Seconds(10);
constexpr absl::Duration kSlice = absl::Milliseconds(100);
constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;

absl::Status NobodyThere(std::string_view address, int attempts,
                         absl::Duration waited, const absl::Status& last) {
  return absl::UnavailableError(absl::StrCat(
      "no daemon at ", std::string(address), ": tried ", attempts, " times in ",
      absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1))),
      ", last: ", last.message(),
      "; start ballastd there, or name its socket with address= or "
      "BALLAST_ADDRESS"));
}

absl::StatusOr<Connection> ConnectOnce(const std::string& path,
                                       std::string_view token,
                                       absl::Duration timeout) {
  Connection connection;
  ASSIGN_OR_RETURN(connection.handle,
                   ipc::HandleClient::Connect(path, token, timeout));
  ASSIGN_OR_RETURN(
      connection.channel,
      ControlChannel::Create(connection.handle->TakeControlFd(),
                             base::ToHex(connection.handle->key().bytes)));
  return connection;
}

}  // namespace

absl::Status Connection::Renew(absl::Duration timeout,
                               const Interrupted& interrupted) {
  const base::MonotonicClock clock;
  const absl::Time deadline = clock.Now() + timeout;
  for (;;) {
    if (interrupted && interrupted()) {
      return absl::CancelledError("interrupted while the daemon was away");
    }
    const absl::Duration left = deadline - clock.Now();
    const absl::Status status =
        handle->AwaitControl(std::clamp(left, absl::ZeroDuration(), kSlice));
    if (status.ok()) break;
    if (!absl::IsDeadlineExceeded(status) || left <= absl::ZeroDuration()) {
      return status;
    }
  }
  ASSIGN_OR_RETURN(channel,
                   ControlChannel::Create(handle->TakeControlFd(),
                                          base::ToHex(handle->key().bytes)));
  return absl::OkStatus();
}

absl::Status Backoff::Pause() {
  absl::Duration rest = std::min(pauses_.Next(), left());
  while (rest > absl::ZeroDuration()) {
    if (interrupted_ && interrupted_()) {
      return absl::CancelledError("interrupted while looking for the daemon");
    }
    const absl::Duration slice = std::min(rest, kSlice);
    absl::SleepFor(slice);
    rest -= slice;
  }
  return absl::OkStatus();
}

bool IsPassing(const absl::Status& status) {
  return (absl::IsUnavailable(status) || absl::IsResourceExhausted(status)) &&
         absl::EndsWith(status.message(), "try again");
}

absl::StatusOr<std::string> SocketPath(std::string_view address) {
  std::string_view path = address;
  if (path.starts_with("unix:")) {
    path.remove_prefix(5);
    if (path.starts_with("//")) path.remove_prefix(2);
  }
  if (!path.starts_with('/') || path.size() > kMaxPathBytes ||
      path.find('\0') != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "address ", base::Quoted(address),
        " is not the absolute path of a Unix socket of at most ", kMaxPathBytes,
        " bytes; write it as unix:///run/ballast/ballastd.sock"));
  }
  return std::string(path);
}

absl::StatusOr<Connection> Connect(const std::string& address,
                                   std::string_view token,
                                   absl::Duration timeout,
                                   const Interrupted& interrupted) {
  ASSIGN_OR_RETURN(const std::string path, SocketPath(address));
  const base::MonotonicClock clock;
  const absl::Time start = clock.Now();
  Backoff backoff(timeout, interrupted);
  absl::Status refusal;  // the last word of a daemon that was there
  for (int attempts = 1;; ++attempts) {
    auto connection = ConnectOnce(
        path, token,
        std::clamp(backoff.left(), absl::Milliseconds(1), kAnswerLimit));
    const absl::Status& status = connection.status();
    if (IsPassing(status)) refusal = status;
    if (absl::IsDeadlineExceeded(status)) {
      // The last try has what is left of the time, and that may be nothing.
      if (!refusal.ok()) return refusal;
      return absl::DeadlineExceededError(
          absl::StrCat("the daemon at ", address, ": ", status.message()));
    }
    if (!absl::IsUnavailable(status) && !IsPassing(status)) return connection;
    if (backoff.left() <= absl::ZeroDuration()) {
      if (IsPassing(status)) return connection;
      return NobodyThere(address, attempts, clock.Now() - start, status);
    }
    RETURN_IF_ERROR(backoff.Pause());
  }
}

}  // namespace ballast::worker
