#include "client/worker/connection.h"

#include <sys/un.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/clock.h"
#include "server/base/hex.h"
#include "server/base/names.h"
#include "server/base/random.h"
#include "server/base/status_macros.h"

namespace ballast::worker {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestPause = absl::Seconds(2);
constexpr absl::Duration kAnswerLimit = absl::Seconds(10);
constexpr absl::Duration kSlice = absl::Milliseconds(100);
constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;

// Between half and all of `pause`, so that workers do not come in step.
absl::Duration Jittered(absl::Duration pause, base::Random& random) {
  return pause * (0.5 + 0.5 * random.Below(1024) / 1024);
}

absl::Status Pause(absl::Duration pause, const Interrupted& interrupted) {
  while (pause > absl::ZeroDuration()) {
    if (interrupted && interrupted()) {
      return absl::CancelledError("interrupted while looking for the daemon");
    }
    const absl::Duration slice = std::min(pause, kSlice);
    absl::SleepFor(slice);
    pause -= slice;
  }
  return absl::OkStatus();
}

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

absl::StatusOr<std::string> SocketPath(std::string_view address) {
  std::string_view path = address;
  if (path.starts_with("unix:")) {
    path.remove_prefix(5);
    if (path.starts_with("//")) path.remove_prefix(2);
  }
  if (path.empty() || path.size() > kMaxPathBytes ||
      path.find('\0') != std::string_view::npos ||
      (path.find('/') == std::string_view::npos &&
       path.find(':') != std::string_view::npos)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "address ", base::Quoted(address),
        " is not the path of a Unix socket of 1 to ", kMaxPathBytes,
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
  base::SystemRandom random;
  const absl::Time start = clock.Now();
  const absl::Time deadline = start + timeout;
  absl::Duration pause = kFirstPause;
  for (int attempts = 1;; ++attempts) {
    const absl::Duration left = deadline - clock.Now();
    auto connection = ConnectOnce(
        path, token, std::clamp(left, absl::Milliseconds(1), kAnswerLimit));
    if (connection.ok() || !absl::IsUnavailable(connection.status())) {
      return connection;
    }
    const absl::Time now = clock.Now();
    if (now >= deadline) {
      return NobodyThere(address, attempts, now - start, connection.status());
    }
    RETURN_IF_ERROR(
        Pause(std::min(Jittered(pause, random), deadline - now), interrupted));
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace ballast::worker
