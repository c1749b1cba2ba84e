// ballast-keeper --socket PATH [--linger SECONDS]: holds a daemon's
// descriptors until SIGTERM; with --linger it also ends when no daemon has been
// there for so long, or when one left nothing.
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "server/base/clock.h"
#include "server/base/event_loop.h"
#include "server/base/unique_fd.h"
#include "server/keeper/descriptor_limit.h"
#include "server/keeper/keeper.h"

namespace ballast::keeper {
namespace {

constexpr char kUsage[] =
    "usage: ballast-keeper --socket PATH [--linger SECONDS]\n";

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "ballast-keeper: %s\n",
               std::string(status.message()).c_str());
  return 1;
}

int Serve(Keeper::Options options) {
  const rlim_t limit = RaiseDescriptorLimit();
  const int holdable = HoldableUnder(limit, options.max_fds);
  if (holdable < options.max_fds) {
    std::fprintf(stderr,
                 "ballast-keeper: may hold %d descriptors, not %d: "
                 "RLIMIT_NOFILE is %llu; raise its hard limit (LimitNOFILE=)\n",
                 holdable, options.max_fds,
                 static_cast<unsigned long long>(limit));
  }
  options.max_fds = holdable;
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  sigprocmask(SIG_BLOCK, &ends, nullptr);
  const base::UniqueFd signals(signalfd(-1, &ends, SFD_CLOEXEC));
  const base::MonotonicClock clock;
  auto loop = base::EventLoop::Create(&clock);
  if (!loop.ok()) return Fail(loop.status());
  options.on_idle = [&loop] { (*loop)->Stop(); };
  auto keeper = Keeper::Create(std::move(options), loop->get());
  if (!keeper.ok()) return Fail(keeper.status());
  const absl::Status watched = (*loop)->WatchFd(
      signals.get(), EPOLLIN, [&loop](uint32_t) { (*loop)->Stop(); });
  if (!watched.ok()) return Fail(watched);
  (*loop)->Run();
  keeper->reset();
  (*loop)->UnwatchFd(signals.get());
  return 0;
}

int Main(int argc, char** argv) {
  Keeper::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    double seconds = 0;
    if (name == "--socket") {
      options.path = argv[i + 1];
    } else if (name == "--linger" && absl::SimpleAtod(argv[i + 1], &seconds) &&
               seconds > 0) {
      options.linger = absl::Seconds(seconds);
    } else {
      options.path.clear();
      break;
    }
  }
  if (options.path.empty() || argc % 2 == 0) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  return Serve(std::move(options));
}

}  // namespace
}  // namespace ballast::keeper

int main(int argc, char** argv) { return ballast::keeper::Main(argc, argv); }
