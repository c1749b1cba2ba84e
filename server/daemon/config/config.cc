#include "server/daemon/config/config.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/base/cpus.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/daemon/config/local_address.h"
#include "server/daemon/config/units.h"
#include "server/daemon/config/yaml_message.h"
#include "server/transport/routed/routes.h"

namespace ballast::daemon {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr size_t kMaxSocketPathBytes = 107;  // sockaddr_un

absl::Status Wrong(const char* key, const std::string& value,
                   const std::string& expected) {
  return absl::InvalidArgumentError(absl::StrCat("config key \"", key, "\" is ",
                                                 base::Quoted(value),
                                                 ", expected ", expected));
}

template <typename T>
absl::Status CheckRange(const char* key, T value, T min, T max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("config key \"", key, "\" is ", value,
                   ", expected a value in [", min, ", ", max, "]"));
}

absl::Status CheckSocket(const char* key, const std::string& address) {
  const std::string path =
      absl::StartsWith(address, "unix://") ? address.substr(7) : "";
  if (path.empty() || path[0] != '/') {
    return Wrong(key, address, "unix:///an/absolute/path");
  }
  if (path.size() > kMaxSocketPathBytes) {
    return Wrong(
        key, address,
        absl::StrCat("a path of at most ", kMaxSocketPathBytes, " bytes"));
  }
  return absl::OkStatus();
}

bool IsHostPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  return colon != std::string::npos && colon > 0 &&
         absl::SimpleAtoi(address.substr(colon + 1), &port) && port <= 65535;
}

absl::Status CheckHostPort(const char* key, const std::string& address) {
  if (address == "off" || IsHostPort(address)) return absl::OkStatus();
  return Wrong(key, address, "host:port (port 0 takes a free one) or off");
}

// Who reaches the admin address may drain the daemon: never the network.
absl::Status CheckAdmin(const std::string& address) {
  constexpr char kKey[] = "listen.admin";
  if (absl::StartsWith(address, "unix:")) return CheckSocket(kKey, address);
  const std::string host = address.substr(0, address.rfind(':'));
  if (IsHostPort(address) &&
      (host == "127.0.0.1" || host == "[::1]" || host == "localhost")) {
    return absl::OkStatus();
  }
  return Wrong(kKey, address,
               "unix:///path, or a port of 127.0.0.1: whoever reaches it may "
               "drain the daemon");
}

absl::Status CheckListen(const v1::ListenConfig& listen) {
  RETURN_IF_ERROR(CheckSocket("listen.workers", listen.workers()));
  RETURN_IF_ERROR(CheckAdmin(listen.admin()));
  RETURN_IF_ERROR(CheckHostPort("listen.http", listen.http()));
  RETURN_IF_ERROR(CheckHostPort("listen.health", listen.health()));
  return CheckHostPort("listen.peer", listen.peer());
}

absl::Status CheckDuration(const char* key, const std::string& text) {
  const auto duration = ParseDuration(text);
  if (!duration.has_value() || *duration < absl::Seconds(1) ||
      *duration > absl::Hours(24 * 30)) {
    return Wrong(key, text, "a duration from \"1s\" to \"720h\"");
  }
  return absl::OkStatus();
}

absl::Status CheckRelinkTimeout(const std::string& text) {
  constexpr char kKey[] = "transport.relink_timeout";
  if (ParseDuration(text) == absl::ZeroDuration() ||
      CheckDuration(kKey, text).ok()) {
    return absl::OkStatus();
  }
  return Wrong(kKey, text, "0s, or a duration from \"1s\" to \"720h\"");
}

absl::Status CheckCpus(const std::string& text) {
  if (text.empty()) return absl::OkStatus();
  const auto cpus = base::ParseCpuList(text);
  const std::vector<int> usable = base::UsableCpus();
  if (cpus.ok() && std::ranges::includes(usable, *cpus)) {
    return absl::OkStatus();
  }
  return Wrong("compute.cpus", text,
               absl::StrCat("some of the processors that this process may "
                            "use, ",
                            base::CpuListText(usable), ", or nothing"));
}

// Goes into UCX's own configuration: a list of names and nothing else.
absl::Status CheckNames(const char* key, const std::string& names,
                        bool may_be_empty) {
  const bool is_list =
      names.size() <= 256 && names.find_first_not_of(
                                 "abcdefghijklmnopqrstuvwxyz"
                                 "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                 "0123456789_.:,-") == std::string::npos;
  if (is_list && (may_be_empty || !names.empty())) return absl::OkStatus();
  return Wrong(key, names, "names separated by commas");
}

bool IsAlgorithm(const std::string& name, transport::Pattern pattern) {
  const auto algorithm = transport::AlgorithmOf(name);
  return name == "auto" || (algorithm.has_value() && Does(*algorithm, pattern));
}

absl::Status CheckTransport(const v1::TransportConfig& transport) {
  RETURN_IF_ERROR(CheckNames("transport.ucx_tls", transport.ucx_tls(), false));
  RETURN_IF_ERROR(
      CheckNames("transport.ucx_devices", transport.ucx_devices(), true));
  if (!transport.listen_address().empty() &&
      !NumericHost(absl::StrCat("[", transport.listen_address(), "]:1"))) {
    return Wrong("transport.listen_address", transport.listen_address(),
                 "a numeric IP address of this machine, or nothing");
  }
  RETURN_IF_ERROR(CheckRange<uint64_t>(
      "transport.chunk_bytes", transport.chunk_bytes(), 16 << 10, 4 << 20));
  RETURN_IF_ERROR(
      CheckDuration("transport.connect_timeout", transport.connect_timeout()));
  RETURN_IF_ERROR(
      CheckDuration("transport.peer_timeout", transport.peer_timeout()));
  RETURN_IF_ERROR(CheckRelinkTimeout(transport.relink_timeout()));
  if (!IsAlgorithm(transport.gather(), transport::Pattern::kGather)) {
    return Wrong("transport.gather", transport.gather(),
                 "auto, direct, ring, doubling or bruck");
  }
  if (!IsAlgorithm(transport.reduce(), transport::Pattern::kDeliver) &&
      transport.reduce() != Name(transport::Algorithm::kHalving)) {
    return Wrong("transport.reduce", transport.reduce(),
                 "auto, direct, pairwise, bruck or halving");
  }
  return absl::OkStatus();
}

absl::Status CheckLimits(const v1::LimitsConfig& limits) {
  RETURN_IF_ERROR(CheckRange("limits.max_jobs", limits.max_jobs(), 1, 4096));
  RETURN_IF_ERROR(CheckRange("limits.max_workers_per_job",
                             limits.max_workers_per_job(), 1, 1024));
  RETURN_IF_ERROR(
      CheckRange("limits.max_tensors", limits.max_tensors(), 1, 100'000));
  RETURN_IF_ERROR(CheckRange("limits.max_idle_connections",
                             limits.max_idle_connections(), 1, 65536));
  RETURN_IF_ERROR(CheckRange("limits.max_idle_connections_per_uid",
                             limits.max_idle_connections_per_uid(), 1, 65536));
  return CheckDuration("limits.idle_connection_timeout",
                       limits.idle_connection_timeout());
}

absl::Status CheckSnapshots(const v1::SnapshotsConfig& snapshots) {
  const std::string& directory = snapshots.directory();
  if (!directory.empty() && directory[0] != '/') {
    return Wrong("snapshots.directory", directory,
                 "an absolute path, or nothing");
  }
  RETURN_IF_ERROR(CheckRange("snapshots.every_steps", snapshots.every_steps(),
                             0, INT32_MAX));
  RETURN_IF_ERROR(CheckRange("snapshots.keep", snapshots.keep(), 0, 10'000));
  const bool has_schedule =
      snapshots.every_steps() > 0 || !snapshots.every().empty();
  if (has_schedule && directory.empty()) {
    return Wrong("snapshots.directory", directory,
                 "a directory, since snapshots.every_steps or snapshots.every "
                 "asks for snapshots");
  }
  if (snapshots.every().empty()) return absl::OkStatus();
  return CheckDuration("snapshots.every", snapshots.every());
}

absl::Status CheckReplicas(const v1::ReplicasConfig& replicas) {
  return CheckRange("replicas.every_steps", replicas.every_steps(), 0,
                    INT32_MAX);
}

absl::Status CheckKeeper(const v1::KeeperConfig& keeper) {
  const auto is_path = [](const std::string& path) {
    return path.empty() ||
           (path[0] == '/' && path.size() <= kMaxSocketPathBytes);
  };
  if (!is_path(keeper.socket())) {
    return Wrong("keeper.socket", keeper.socket(),
                 absl::StrCat("an absolute path of at most ",
                              kMaxSocketPathBytes, " bytes, or nothing"));
  }
  if (!keeper.program().empty() && keeper.program()[0] != '/') {
    return Wrong("keeper.program", keeper.program(),
                 "the absolute path of ballast-keeper, or nothing");
  }
  if (keeper.program().empty() || !keeper.socket().empty()) {
    return absl::OkStatus();
  }
  return Wrong("keeper.socket", "",
               "a path, since keeper.program asks for a keeper");
}

}  // namespace

v1::Config DefaultConfig() {
  v1::Config config;
  v1::ListenConfig& listen = *config.mutable_listen();
  listen.set_workers("unix:///run/ballast/ballastd.sock");
  listen.set_admin("unix:///run/ballast/admin.sock");
  listen.set_http("0.0.0.0:7471");
  listen.set_health("0.0.0.0:7472");
  listen.set_peer("0.0.0.0:7470");
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  config.mutable_node()->set_name(host);
  v1::ComputeConfig& compute = *config.mutable_compute();
  compute.set_threads(0);
  compute.set_chunk_bytes(256 << 10);
  compute.set_bucket_bytes(5 << 20);
  compute.set_buckets_in_flight(8);
  v1::LimitsConfig& limits = *config.mutable_limits();
  limits.set_max_jobs(64);
  limits.set_max_workers_per_job(1024);
  limits.set_max_tensors(100'000);
  limits.set_max_idle_connections(1024);
  limits.set_max_idle_connections_per_uid(256);
  limits.set_idle_connection_timeout("30s");
  config.mutable_jobs()->set_hold("10m");
  config.mutable_jobs()->set_join_timeout("10m");
  config.mutable_security();
  config.mutable_log()->set_level("info");
  v1::TransportConfig& transport = *config.mutable_transport();
  transport.set_ucx_tls("tcp");
  transport.set_chunk_bytes(256 << 10);
  transport.set_connect_timeout("20s");
  transport.set_peer_timeout("30s");
  transport.set_relink_timeout("5m");
  transport.set_gather("auto");
  transport.set_reduce("auto");
  config.mutable_snapshots()->set_keep(2);
  config.mutable_keeper();
  config.mutable_replicas();
  return config;
}

absl::Status ApplyYaml(const std::string& yaml, v1::Config* config) {
  return ApplyYamlTo(yaml, config);
}

absl::Status ApplyOverride(std::string_view override, v1::Config* config) {
  const size_t equals = override.find('=');
  if (equals == std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("--set ", base::Quoted(override),
                     " has no value: give section.key=value"));
  }
  return SetKey(override.substr(0, equals),
                std::string(override.substr(equals + 1)), config);
}

absl::Status CheckConfig(const v1::Config& config) {
  RETURN_IF_ERROR(CheckListen(config.listen()));
  const std::string& coordinator = config.node().coordinator();
  if (!coordinator.empty() && !IsHostPort(coordinator)) {
    return Wrong("node.coordinator", coordinator, "host:port, or nothing");
  }
  const v1::ComputeConfig& compute = config.compute();
  RETURN_IF_ERROR(CheckRange("compute.threads", compute.threads(), 0, 1024));
  RETURN_IF_ERROR(CheckCpus(compute.cpus()));
  RETURN_IF_ERROR(CheckRange<uint64_t>(
      "compute.chunk_bytes", compute.chunk_bytes(), 8 << 10, 64 << 20));
  RETURN_IF_ERROR(CheckRange<uint64_t>(
      "compute.bucket_bytes", compute.bucket_bytes(), 8 << 10, 1 << 30));
  RETURN_IF_ERROR(CheckRange("compute.buckets_in_flight",
                             compute.buckets_in_flight(), 1, 4096));
  RETURN_IF_ERROR(CheckLimits(config.limits()));
  RETURN_IF_ERROR(CheckDuration("jobs.hold", config.jobs().hold()));
  RETURN_IF_ERROR(
      CheckDuration("jobs.join_timeout", config.jobs().join_timeout()));
  RETURN_IF_ERROR(CheckTransport(config.transport()));
  RETURN_IF_ERROR(CheckSnapshots(config.snapshots()));
  RETURN_IF_ERROR(CheckReplicas(config.replicas()));
  RETURN_IF_ERROR(CheckKeeper(config.keeper()));
  const std::string& level = config.log().level();
  if (level != "debug" && level != "info" && level != "warn" &&
      level != "error") {
    return Wrong("log.level", level, "debug, info, warn or error");
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Config> LoadConfig(
    const std::string& path, const std::vector<std::string>& overrides) {
  v1::Config config = DefaultConfig();
  if (!path.empty()) {
    std::ifstream file(path);
    if (!file) {
      return absl::NotFoundError(
          absl::StrCat("cannot open the configuration ", path));
    }
    std::string yaml(kMaxConfigBytes + 1, '\0');
    file.read(yaml.data(), static_cast<std::streamsize>(yaml.size()));
    yaml.resize(file.gcount());
    if (yaml.size() > kMaxConfigBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is longer than ", kMaxConfigBytes, " bytes"));
    }
    if (const absl::Status status = ApplyYaml(yaml, &config); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", std::string(status.message())));
    }
  }
  for (const std::string& override : overrides) {
    RETURN_IF_ERROR(ApplyOverride(override, &config));
  }
  RETURN_IF_ERROR(CheckConfig(config));
  return config;
}

std::string PrintConfig(const v1::Config& config) { return ToYaml(config); }

}  // namespace ballast::daemon
