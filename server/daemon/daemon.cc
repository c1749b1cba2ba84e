#include "server/daemon/daemon.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/host/host.h"
#include "server/base/cpus.h"
#include "server/base/status_macros.h"
#include "server/daemon/log.h"
#include "server/daemon/options.h"
#include "server/daemon/version.h"
#include "server/service/admin_service.h"
#include "server/service/peer_service.h"
#include "server/service/worker_service.h"
#include "server/snapshot/files/posix_file_system.h"

namespace ballast::daemon {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(5);
constexpr absl::Duration kMetricsInterval = absl::Milliseconds(500);
// Bounds of a drain: committed work, the ends of jobs, open calls.
constexpr absl::Duration kIdleLimit = absl::Seconds(5);
constexpr absl::Duration kEmptyLimit = absl::Seconds(5);
constexpr absl::Duration kCallLimit = absl::Seconds(1);
constexpr absl::Duration kFlushLimit = absl::Seconds(5);

// A job that waits for the disk leaves one to the others.
constexpr int kIoThreads = 2;
constexpr int kIoNiceness = 10;  // a snapshot has time, a step has not

// Adds which key an error is about.
absl::Status At(const char* key, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(key, ": ", std::string(status.message())));
}

// Before any state is allocated: what the pool's threads work on is as near to
// the one as to the other.
void SpreadMemory(const std::vector<int>& cpus) {
  std::vector<int> nodes = base::NumaNodesOf(cpus);
  std::ranges::sort(nodes);
  nodes.erase(std::ranges::unique(nodes).begin(), nodes.end());
  if (nodes.size() < 2) return;
  const absl::Status spread = base::InterleaveMemory(nodes);
  const std::string text = base::CpuListText(nodes);
  if (spread.ok()) return LogInfo("memory is spread over NUMA nodes " + text);
  LogWarn(absl::StrCat("memory is not spread over NUMA nodes ", text, ": ",
                       spread.message()));
}

// A step is committed whose weights are not all out yet.
bool IsPublishing(const JobRuntime& runtime) {
  const engine::JobEngine& engine = runtime.engine();
  return engine.weight_version().value() + 1 < engine.open_step().value();
}

}  // namespace

Daemon::Daemon(const v1::Config& config, std::set<std::string> drops)
    : config_(config), drops_(std::move(drops)) {}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Create(
    const v1::Config& config, std::set<std::string> drops) {
  auto daemon = std::unique_ptr<Daemon>(new Daemon(config, std::move(drops)));
  RETURN_IF_ERROR(daemon->CreateCore());
  RETURN_IF_ERROR(daemon->Listen());
  RETURN_IF_ERROR(At("keeper", daemon->TakeOver()));
  // Last: whoever is let in finds all the rest.
  RETURN_IF_ERROR(At("listen.workers", daemon->worker_door_->StartAccepting()));
  return daemon;
}

// Once this daemon has its sockets: no other one is alive that still writes to
// what it left.
absl::Status Daemon::TakeOver() {
  const v1::KeeperConfig& config = config_.keeper();
  if (config.socket().empty()) {
    LogInfo("no keeper.socket: a restart of this daemon ends its jobs");
    return absl::OkStatus();
  }
  ipc::KeeperClient::Options options;
  options.path = config.socket();
  options.warn = LogWarn;
  options.on_refusal = [this](const std::string& name,
                              const absl::Status& why) {
    node_->OnRefusal(name, why);
  };
  if (!config.program().empty()) {
    keeper_process_ = std::make_unique<KeeperProcess>(
        config.program(), config.socket(), Hold(config_));
    options.start = [this] {
      const absl::Status started = keeper_process_->Start();
      if (!started.ok()) LogWarn(std::string(started.message()));
    };
  }
  ASSIGN_OR_RETURN(keeper_,
                   ipc::KeeperClient::Connect(std::move(options), loop_.get()));
  control_->set_keeper(keeper_.get());
  ASSIGN_OR_RETURN(std::vector<base::Kept> found, keeper_->Found());
  LogInfo(
      absl::StrCat("keeper path=", config.socket(), " found=", found.size()));
  const absl::Status taken =
      node_->TakeOver({.vault = keeper_.get(),
                       .found = std::move(found),
                       .adopt_worker =
                           [this](base::Kept worker) {
                             return worker_door_->Adopt(std::move(worker));
                           },
                       .drops = drops_});
  // The next daemon finds what this one has put there or dropped.
  const absl::Time limit = clock_.Now() + kFlushLimit;
  while (!taken.ok() && !keeper_->is_flushed() && clock_.Now() < limit) {
    loop_->RunOnce(absl::Milliseconds(10));
  }
  return taken;
}

bool Daemon::can_hand_over() const {
  return keeper_ != nullptr && keeper_->is_flushed();
}

absl::Status Daemon::CreateCore() {
  metrics_ = std::make_unique<metrics::Metrics>(
      metrics::BuildInfo{kVersion, "", kCompiler}, &wall_clock_);
  rpc_metrics_ = std::make_unique<RpcMetrics>(metrics_.get());
  ASSIGN_OR_RETURN(loop_, base::EventLoop::Create(&clock_));
  device_ = std::make_unique<device::HostDevice>(
      device::HostDevice::Options{.limit_bytes = MaxTotalBytes(config_)},
      loop_.get());
  base::ThreadPool::Options pool;
  pool.num_threads = ComputeThreads(config_);
  pool.cpus = ComputeCpus(config_);
  SpreadMemory(pool.cpus.empty() ? base::UsableCpus() : pool.cpus);
  pool_ = std::make_unique<base::ThreadPool>(pool, loop_.get());

  Leaves leaves;
  leaves.clock = &clock_;
  leaves.executor = loop_.get();
  leaves.pool = pool_.get();
  leaves.device = device_.get();
  leaves.random = &random_;
  leaves.kernels = &kernels::Host();
  leaves.warn = LogWarn;
  LogInfo(absl::StrCat("using kernels target=", kernels::HostTarget()));
  leaves.metrics = metrics_.get();
  if (config_.listen().peer() != "off") {
    auto peers = UcxPeerPlane::Create(PeerPlaneOptions(config_),
                                      {&clock_, loop_.get(), &rendezvous_});
    RETURN_IF_ERROR(At("transport", peers.status()));
    peers_ = *std::move(peers);
    leaves.peers = peers_.get();
  }
  OpenSnapshots();
  leaves.snapshot_files = snapshot_files_.get();
  leaves.io = io_.get();
  NodeOptions options;
  options.snapshots = SnapshotSchedule(config_);
  options.replicas = ReplicaSchedule(config_);
  options.sessions = SessionOptions(config_);
  options.sessions.metrics = metrics_.get();
  options.sessions.log = LogInfo;
  options.buckets_in_flight = config_.compute().buckets_in_flight();
  options.peer_timeout = PeerTimeout(config_);
  options.relink_timeout = RelinkTimeout(config_);
  options.algorithms = ExchangeAlgorithms(config_);
  node_ = std::make_unique<Node>(leaves, options);
  control_ = std::make_unique<Control>(
      Control::Parts{&clock_, node_.get(), device_.get(), metrics_.get()},
      [this] { Drain("an operator asked for it"); });
  control_->set_snapshots(snapshot_directory_.get());
  return absl::OkStatus();
}

// And a pool for whatever touches files, on a disk or in memory.
void Daemon::OpenSnapshots() {
  const std::string& directory = config_.snapshots().directory();
  if (directory.empty() && config_.replicas().every_steps() == 0) return;
  base::ThreadPool::Options io;
  io.num_threads = kIoThreads;
  io.name = "snapshot";
  io.niceness = kIoNiceness;
  io_ = std::make_unique<base::ThreadPool>(io, loop_.get());
  if (directory.empty()) return;
  snapshot_files_ = std::make_unique<snapshot::PosixFileSystem>(directory);
  LogInfo(absl::StrCat("keeping snapshots directory=", directory));
  snapshot_directory_ = std::make_unique<SnapshotDirectory>(
      SnapshotDirectory::Parts{.files = snapshot_files_.get(),
                               .io = io_.get(),
                               .executor = loop_.get(),
                               .log = LogInfo,
                               .warn = LogWarn});
}

absl::Status Daemon::Listen() {
  const v1::ListenConfig& listen = config_.listen();
  Addresses addresses;
  addresses.workers = listen.workers();
  ASSIGN_OR_RETURN(worker_server_,
                   service::GrpcServer::WithoutPort(service::MakeWorkerService(
                       {loop_.get(), &node_->sessions(), control_.get(),
                        rpc_metrics_.get()})));
  // Its path is taken first: that says whether another daemon is here already.
  auto worker_door =
      WorkerDoor::Open(config_, {loop_.get(), &random_, &node_->sessions(),
                                 worker_server_.get(), metrics_.get()});
  RETURN_IF_ERROR(At("listen.workers", worker_door.status()));
  worker_door_ = *std::move(worker_door);

  auto admin_door =
      AdminDoor::Open(listen.admin(),
                      service::MakeAdminService(
                          {loop_.get(), control_.get(), rpc_metrics_.get()}),
                      loop_.get());
  RETURN_IF_ERROR(At("listen.admin", admin_door.status()));
  admin_door_ = *std::move(admin_door);
  addresses.admin = admin_door_->address();

  if (listen.http() != "off") {
    auto page = metrics::MetricsPage::Create(listen.http(), metrics_.get());
    RETURN_IF_ERROR(At("listen.http", page.status()));
    metrics_page_ = *std::move(page);
    addresses.http = metrics_page_->address();
  }
  if (listen.health() != "off") {
    auto health = service::GrpcServer::Listen(listen.health(), nullptr);
    RETURN_IF_ERROR(At("listen.health", health.status()));
    health_server_ = *std::move(health);
    health_server_->SetReady(true);
    addresses.health = health_server_->address();
  }
  if (peers_ != nullptr) {
    auto peer = service::GrpcServer::Listen(
        listen.peer(),
        service::MakePeerService(
            {loop_.get(), &clock_, &rendezvous_, rpc_metrics_.get()}),
        service::kMaxPeerMessageBytes);
    RETURN_IF_ERROR(At("listen.peer", peer.status()));
    peer_server_ = *std::move(peer);
    addresses.peer = peer_server_->address();
  }
  ASSIGN_OR_RETURN(signals_, Signals::Create(loop_.get(), [this](int number) {
                     OnSignal(number);
                   }));
  control_->set_addresses(addresses);
  RefreshMetrics();
  const auto or_off = [](const std::string& address) {
    return address.empty() ? "off" : address;
  };
  LogInfo(absl::StrCat(
      "listening workers=", addresses.workers, " admin=", addresses.admin,
      " http=", or_off(addresses.http), " health=", or_off(addresses.health),
      " peer=", or_off(addresses.peer)));
  if (peers_ != nullptr) {
    const std::string address = TransportAddress(config_);
    LogInfo(absl::StrCat("transport tls=", config_.transport().ucx_tls(),
                         " device=", config_.transport().ucx_devices(),
                         " address=", address.empty() ? "device's" : address));
  }
  return absl::OkStatus();
}

Daemon::~Daemon() {
  if (shutdown_thread_.joinable()) shutdown_thread_.join();
}

void Daemon::Run() { loop_->Run(); }

void Daemon::RefreshMetrics() {
  control_->RefreshMetrics();
  metrics_->gauge(metrics::Family::kKeeperConnected)
      ->Set(keeper_ == nullptr ? -1 : keeper_->is_connected());
  metrics_->gauge(metrics::Family::kSnapshotDirectoryReadable)
      ->Set(snapshot_directory_ == nullptr
                ? -1
                : snapshot_directory_->status().ok());
  loop_->PostAfter(kMetricsInterval, [this] { RefreshMetrics(); });
}

void Daemon::OnSignal(int number) {
  if (is_draining_) {
    LogWarn(absl::StrCat("exiting at once signal=", strsignal(number)));
    std::_Exit(1);
  }
  Drain(strsignal(number));
}

void Daemon::Drain(const std::string& reason) {
  if (is_draining_) return;
  is_draining_ = true;
  LogInfo(absl::StrCat("draining reason=\"", reason,
                       "\" jobs=", node_->sessions().jobs().size()));
  control_->set_draining();
  if (health_server_ != nullptr) health_server_->SetReady(false);
  worker_door_->StopAccepting();
  node_->sessions().StopAccepting(absl::UnavailableError("daemon is draining"));
  AwaitIdle(clock_.Now() + kIdleLimit);
}

void Daemon::AwaitIdle(absl::Time deadline) {
  bool is_idle = true;
  for (const session::LocalJob* job : node_->sessions().jobs()) {
    const JobRuntime* const runtime = node_->Find(job->spec().name);
    if (runtime != nullptr) is_idle &= !IsPublishing(*runtime);
  }
  if (!is_idle && clock_.Now() < deadline) {
    loop_->PostAfter(kPollInterval, [this, deadline] { AwaitIdle(deadline); });
    return;
  }
  const absl::Status why = absl::UnavailableError("daemon is draining");
  if (can_hand_over()) {
    node_->EndUnkept(why);
  } else {
    node_->sessions().FailAll(why);
  }
  AwaitEmpty(clock_.Now() + kEmptyLimit);
}

void Daemon::AwaitEmpty(absl::Time deadline) {
  const bool is_empty =
      can_hand_over() ? !node_->has_unkept() : node_->is_empty();
  if (!is_empty && clock_.Now() < deadline) {
    loop_->PostAfter(kPollInterval, [this, deadline] { AwaitEmpty(deadline); });
    return;
  }
  // Shutting gRPC down blocks until its calls are answered, which is done
  // here: so it has a thread of its own.
  shutdown_thread_ = std::thread([this] {
    ShutDownServers();
    loop_->Post([this] { loop_->Stop(); });
  });
}

void Daemon::ShutDownServers() {
  worker_server_->Shutdown(kCallLimit);
  admin_door_->Shutdown(kCallLimit);
  if (peer_server_ != nullptr) peer_server_->Shutdown(absl::ZeroDuration());
  if (health_server_ != nullptr) {
    health_server_->Shutdown(absl::ZeroDuration());
  }
}

}  // namespace ballast::daemon
