// ballastd: the daemon of one node. README.md beside this has every
// configuration key.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "server/base/failpoint.h"
#include "server/daemon/config/config.h"
#include "server/daemon/daemon.h"
#include "server/daemon/log.h"
#include "server/daemon/signals.h"
#include "server/daemon/version.h"

namespace ballast::daemon {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

// Every worker costs several descriptors; nothing here uses select(2), the
// reason for low soft limits.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    LogWarn("cannot raise the limit of open files to its maximum");
  }
}

int Serve(const v1::Config& config, const std::vector<std::string>& drops) {
  SetUpLog(config.log().level());
  RaiseDescriptorLimit();
  Signals::Block();
  auto daemon = Daemon::Create(config, {drops.begin(), drops.end()});
  if (!daemon.ok()) {
    LogError("cannot start: " + std::string(daemon.status().message()));
    return kFailed;
  }
  (*daemon)->Run();
  daemon->reset();
  LogInfo("stopped");
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app("ballastd: holds the optimizer state of training jobs");
  std::string path;
  std::vector<std::string> overrides;
  std::vector<std::string> drops;
  bool print_config = false;
  bool print_version = false;
  app.add_option("--config", path, "configuration file (YAML)");
  app.add_option("--set", overrides, "section.key=value, over the file")
      ->allow_extra_args(false);
  app.add_option("--drop-job", drops,
                 "a job that the keeper holds and that is given up")
      ->allow_extra_args(false);
#ifdef BALLAST_FAILPOINTS
  std::string failpoints;
  app.add_option("--failpoints", failpoints,
                 "where to die, for tests (server/base/failpoint.h)");
#endif
  app.add_flag("--print-config", print_config,
               "print the configuration in force and exit");
  app.add_flag("--version", print_version, "print the version and exit");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kUsage;
  }
  if (print_version) {
    std::printf("ballastd %s (%s)\n", kVersion, kCompiler);
    return 0;
  }
#ifdef BALLAST_FAILPOINTS
  const absl::Status armed = base::ConfigureFailpoints(failpoints, /*seed=*/1);
  if (!armed.ok()) {
    std::fprintf(stderr, "ballastd: --failpoints: %s\n",
                 std::string(armed.message()).c_str());
    return kUsage;
  }
#endif
  const auto config = LoadConfig(path, overrides);
  if (!config.ok()) {
    std::fprintf(stderr, "ballastd: %s\n",
                 std::string(config.status().message()).c_str());
    return kUsage;
  }
  if (print_config) {
    std::fputs(PrintConfig(*config).c_str(), stdout);
    return 0;
  }
  return Serve(*config, drops);
}

}  // namespace
}  // namespace ballast::daemon

int main(int argc, char** argv) { return ballast::daemon::Main(argc, argv); }
