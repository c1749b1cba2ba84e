// Both services and the health checks over real gRPC on loopback sockets.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "proto/handle_socket.h"
#include "proto/worker.grpc.pb.h"
#include "server/base/clock.h"
#include "server/base/event_loop.h"
#include "server/base/unique_fd.h"
#include "server/device/host/host_device.h"
#include "server/service/admin_service.h"
#include "server/service/grpc_server.h"
#include "server/service/node_control.h"
#include "server/service/worker_service.h"
#include "server/session/sessions.h"

namespace ballast::service {
namespace {

class FakeNode final : public NodeControl {
 public:
  v1::VersionReply Version() const override {
    v1::VersionReply reply;
    reply.set_version("1.2.3");
    return reply;
  }
  v1::GetServerInfoReply ServerInfo() override {
    v1::GetServerInfoReply reply;
    reply.add_optimizers("adamw");
    return reply;
  }
  v1::StatusReply Status() override { return {}; }
  v1::ListJobsReply ListJobs() override { return {}; }
  absl::StatusOr<v1::GetJobReply> GetJob(const std::string& name) override {
    if (name == "gone") return absl::NotFoundError("no job \"gone\"");
    v1::GetJobReply reply;
    reply.mutable_summary()->set_name(name);
    return reply;
  }
  absl::Status AdoptJob(const std::string& name) override {
    if (name == "gone") return absl::NotFoundError("no job \"gone\"");
    adopted = name;
    return absl::OkStatus();
  }
  void SaveSnapshot(const std::string& job, const std::string& name,
                    SaveDone done) override {
    if (job == "gone") {
      return std::move(done)(absl::NotFoundError("no job \"gone\""));
    }
    v1::SaveSnapshotReply reply;
    reply.set_path(job + "/" + name);
    std::move(done)(reply);
  }
  void Drain() override { is_draining = true; }

  bool is_draining = false;
  std::string adopted;
};

class FakeHost final : public session::JobHost, public session::JobObserver {
 public:
  std::string WaitingFor() const override { return ""; }
  session::JobMemory MemoryOf(const session::AttachRequest&) override {
    return {};
  }
  void ReleaseMemory(const std::string&) override {}
  absl::StatusOr<session::JobObserver*> StartJob(session::LocalJob*) override {
    return this;
  }
  void EndJob(session::LocalJob*, const absl::Status&,
              absl::AnyInvocable<void() &&> done) override {
    std::move(done)();
  }
  void FindStored(const session::AttachRequest&, uint32_t,
                  session::StoredDone done) override {
    std::move(done)(std::nullopt);
  }
  uint64_t WindowBytes(const session::JobSpec&, const layout::Layout&,
                       NodeRank) const override {
    return 0;
  }
  void SaveLast(session::LocalJob*,
                absl::AnyInvocable<void(absl::Status) &&> done) override {
    std::move(done)(absl::FailedPreconditionError("nothing is kept"));
  }
  void SaveHeld(
      session::LocalJob*,
      absl::AnyInvocable<void(absl::StatusOr<std::string>) &&> done) override {
    std::move(done)("");
  }
  uint64_t held_bytes() const override { return 0; }
  void OnAllReady() override {}
  void OnPushed(LocalRank, BucketId) override {}
  void OnStepInput(LocalRank, std::span<const proto::GroupValues>,
                   std::string) override {}
  void OnStepInputRefused(LocalRank, const absl::Status&) override {}
  void OnWanted(LocalRank, int, uint64_t) override {}
  void OnWorkerLost(LocalRank, const absl::Status&) override {}
  void OnWorkerClosed(LocalRank) override {}
  void OnAllClosed() override {}
};

class NullLink final : public session::WorkerLink {
 public:
  const session::WorkerIdentity& identity() const override { return identity_; }
  absl::Status SendSegment(proto::SegmentKind,
                           const device::SharedBuffer&) override {
    return absl::OkStatus();
  }
  void OnWake() override {}
  absl::Status Keep(base::Vault*, std::string_view) const override {
    return absl::OkStatus();
  }
  ipc::ProcessState process_state() const override {
    return ipc::ProcessState::kRunning;
  }
  void Close(const absl::Status&) override {}

 private:
  const session::WorkerIdentity identity_{7, 0, Incarnation(1)};
};

struct CountingObserver : RpcObserver {
  void OnRpcDone(std::string_view, const absl::Status&) override { ++count; }
  std::atomic<int> count{0};
};

class ServicesTest : public testing::Test {
 protected:
  ServicesTest()
      : loop_(*base::EventLoop::Create(&clock_)),
        device_({}, loop_.get()),
        sessions_({}, &device_, loop_.get(), &host_) {
    sessions_.OnConnected("key", std::make_unique<NullLink>());
    workers_ = *GrpcServer::WithoutPort(
        MakeWorkerService({loop_.get(), &sessions_, &node_, &observer_}));
    admin_ = *GrpcServer::Listen(
        "127.0.0.1:0", MakeAdminService({loop_.get(), &node_, &observer_}));
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    workers_->AddConnection(base::UniqueFd(fds[0]));
    EXPECT_EQ(fcntl(fds[1], F_SETFL, O_NONBLOCK), 0);
    worker_ = v1::WorkerService::NewStub(
        grpc::CreateInsecureChannelFromFd("ballast", fds[1]));
    channel_ = grpc::CreateChannel(admin_->address(),
                                   grpc::InsecureChannelCredentials());
    operator_ = v1::AdminService::NewStub(channel_);
    thread_ = std::thread([this] { loop_->Run(); });
  }

  ~ServicesTest() override {
    workers_->Shutdown(absl::ZeroDuration());
    admin_->Shutdown(absl::ZeroDuration());
    loop_->Stop();
    thread_.join();
  }

  static void SetUp(grpc::ClientContext* context, const char* key = "key") {
    context->AddMetadata(proto::kKeyMetadata, key);
    context->set_deadline(std::chrono::system_clock::now() +
                          std::chrono::seconds(30));
  }
  static v1::AttachRequest Request() {
    v1::AttachRequest request;
    v1::JobSpec* const job = request.mutable_job();
    job->set_name("job");
    v1::Tensor* const tensor = job->add_tensors();
    tensor->set_name("w");
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    job->mutable_optimizer()->set_name(v1::OPTIMIZER_SGD);
    job->mutable_optimizer()->add_groups()->set_lr(0.1);
    request.mutable_topology()->set_world_size(2);
    request.mutable_topology()->set_local_world_size(2);
    request.set_has_initial_values(true);
    return request;
  }

  const base::MonotonicClock clock_;
  std::unique_ptr<base::EventLoop> loop_;
  device::HostDevice device_;
  FakeHost host_;
  FakeNode node_;
  CountingObserver observer_;
  session::Sessions sessions_;
  std::unique_ptr<GrpcServer> workers_;
  std::unique_ptr<GrpcServer> admin_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::WorkerService::Stub> worker_;
  std::unique_ptr<v1::AdminService::Stub> operator_;
  std::thread thread_;
};

TEST_F(ServicesTest, AttachesAndSaysWhoIsMissingBeforeTheDeadline) {  // I23
  {
    grpc::ClientContext context;
    SetUp(&context);
    v1::AttachReply reply;
    const grpc::Status status = worker_->Attach(&context, Request(), &reply);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(reply.num_buckets(), 1);
    EXPECT_GT(reply.initial_bytes(), 0);
  }
  {
    grpc::ClientContext context;
    SetUp(&context);
    v1::GetStatsReply reply;
    ASSERT_TRUE(worker_->GetStats(&context, {}, &reply).ok());
    EXPECT_NE(reply.json().find("\"job\""), std::string::npos);
  }
  // On a busy machine the answer may come too late after all: then again.
  grpc::Status status;
  const auto names_the_rank = [&] {
    return status.error_message().find("rank 1 has not attached") !=
           std::string::npos;
  };
  for (int i = 0; i < 10 && !names_the_rank(); ++i) {
    grpc::ClientContext context;
    context.AddMetadata(proto::kKeyMetadata, "key");
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::seconds(2));
    v1::BeginReply reply;
    status = worker_->Begin(&context, {}, &reply);
    EXPECT_EQ(status.error_code(), grpc::DEADLINE_EXCEEDED);
  }
  EXPECT_TRUE(names_the_rank()) << status.error_message();
}

TEST_F(ServicesTest, TheKeyIsTheIdentity) {  // I26
  v1::GetServerInfoReply reply;
  grpc::ClientContext without;
  EXPECT_EQ(worker_->GetServerInfo(&without, {}, &reply).error_code(),
            grpc::UNAUTHENTICATED);
  grpc::ClientContext twice;
  SetUp(&twice);
  twice.AddMetadata(proto::kKeyMetadata, "other");
  EXPECT_EQ(worker_->GetServerInfo(&twice, {}, &reply).error_code(),
            grpc::UNAUTHENTICATED);
  grpc::ClientContext wrong;
  SetUp(&wrong, "wrong");
  v1::AttachReply attached;
  EXPECT_EQ(worker_->Attach(&wrong, Request(), &attached).error_code(),
            grpc::FAILED_PRECONDITION);
}

TEST_F(ServicesTest, RefusesAMessageThatIsTooLarge) {  // I26
  v1::AttachRequest request = Request();
  request.mutable_job()->set_tenant(std::string(kMaxMessageBytes + 1, 'x'));
  grpc::ClientContext context;
  SetUp(&context);
  v1::AttachReply reply;
  EXPECT_EQ(worker_->Attach(&context, request, &reply).error_code(),
            grpc::RESOURCE_EXHAUSTED);
}

TEST_F(ServicesTest, AdminTranslatesStatus) {
  grpc::ClientContext version;
  v1::VersionReply reply;
  ASSERT_TRUE(operator_->Version(&version, {}, &reply).ok());
  EXPECT_EQ(reply.version(), "1.2.3");
  grpc::ClientContext job;
  v1::GetJobRequest request;
  request.set_name("gone");
  v1::GetJobReply job_reply;
  const grpc::Status status = operator_->GetJob(&job, request, &job_reply);
  EXPECT_EQ(status.error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "no job \"gone\"");
  for (const char* name : {"gone", "half"}) {
    grpc::ClientContext adopt;
    v1::AdoptJobRequest adopted;
    adopted.set_name(name);
    v1::AdoptJobReply adopt_reply;
    EXPECT_EQ(operator_->AdoptJob(&adopt, adopted, &adopt_reply).error_code(),
              std::string(name) == "gone" ? grpc::NOT_FOUND : grpc::OK);
  }
  EXPECT_EQ(node_.adopted, "half");
  grpc::ClientContext drain;
  v1::DrainReply drained;
  EXPECT_TRUE(operator_->Drain(&drain, {}, &drained).ok());
  EXPECT_TRUE(node_.is_draining);
  EXPECT_EQ(observer_.count, 5);
}

// grpc.health.v1 by hand: {1: service} -> {1: status}, 1 = SERVING.
std::string Health(const std::string& address, const std::string& service) {
  std::string request = "\x0a";
  request += static_cast<char>(service.size());
  request += service;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer message(&slice, 1);
  const auto channel =
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check",
                                         grpc::internal::RpcMethod::NORMAL_RPC);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(30));
  grpc::ByteBuffer reply;
  const grpc::Status status =
      grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer,
                                        grpc::ByteBuffer, grpc::ByteBuffer>(
          channel.get(), method, &context, message, &reply);
  if (!status.ok()) return "code " + std::to_string(status.error_code());
  grpc::Slice bytes;
  if (!reply.DumpToSingleSlice(&bytes).ok() || bytes.size() != 2) return "?";
  return bytes.begin()[1] == 1 ? "serving" : "not serving";
}

TEST(HealthTest, LiveFromTheStartReadyWhenSaid) {
  auto server = *GrpcServer::Listen("127.0.0.1:0", nullptr);
  EXPECT_EQ(Health(server->address(), "ballast.live"), "serving");
  EXPECT_EQ(Health(server->address(), "ballast.ready"), "not serving");
  server->SetReady(true);
  EXPECT_EQ(Health(server->address(), "ballast.ready"), "serving");
  EXPECT_EQ(Health(server->address(), ""), "serving");
  EXPECT_EQ(Health(server->address(), "other"),
            "code " + std::to_string(grpc::NOT_FOUND));
}

TEST(GrpcServerTest, SaysWhichAddressIsTaken) {
  auto first = *GrpcServer::Listen("127.0.0.1:0", nullptr);
  const auto second = GrpcServer::Listen(first->address(), nullptr);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(first->address()),
            absl::string_view::npos);
}

TEST_F(ServicesTest, ShutdownDoesNotWaitForAnOpenBegin) {  // I23
  {
    grpc::ClientContext context;
    SetUp(&context);
    v1::AttachReply reply;
    ASSERT_TRUE(worker_->Attach(&context, Request(), &reply).ok());
  }
  grpc::Status status;
  std::thread caller([&] {
    grpc::ClientContext context;
    SetUp(&context);
    v1::BeginReply reply;
    status = worker_->Begin(&context, {}, &reply);
  });
  loop_->Post([this] {
    sessions_.FailAll(absl::UnavailableError("daemon is draining"));
  });
  caller.join();
  EXPECT_FALSE(status.ok());
}

}  // namespace
}  // namespace ballast::service
