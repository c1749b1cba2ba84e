#include "server/service/peer_client.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "proto/peer_service.grpc.pb.h"
#include "server/base/mutex.h"
#include "server/service/grpc_status.h"

namespace ballast::service {
namespace {

constexpr int kMinReconnectMs = 100;
constexpr int kMaxReconnectMs = 1000;

// What gRPC's threads share with the client: the way back to the control
// thread, while there is one.
class WayBack {
 public:
  explicit WayBack(base::Executor* executor) : executor_(executor) {}

  void Close() {
    base::MutexLock lock(&mutex_);
    executor_ = nullptr;
  }
  // False, and nothing happened, after Close.
  bool Post(absl::AnyInvocable<void() &&>& fn) {
    base::MutexLock lock(&mutex_);
    if (executor_ == nullptr) return false;
    executor_->Post(std::move(fn));
    return true;
  }

 private:
  base::Mutex mutex_;
  base::Executor* executor_ ABSL_GUARDED_BY(mutex_);
};

// Kept alive by gRPC's callback until it was called.
struct Call {
  grpc::ClientContext context;
  v1::RendezvousRequest request;
  v1::RendezvousReply reply;
  PeerClient::RendezvousDone done;
};

// Calls that ended after their client. A call holds the channel, and with the
// channel goes gRPC's thread of it: if that thread released the last one, it
// would wait for itself. So they stay here until the next client comes or goes.
class LeftCalls {
 public:
  static LeftCalls& Get() {
    // Never destroyed: gRPC's threads outlive what is static.
    static LeftCalls& left = *std::make_unique<LeftCalls>().release();
    return left;
  }
  void Add(std::shared_ptr<Call> call) {
    base::MutexLock lock(&mutex_);
    calls_.push_back(std::move(call));
  }
  void Release() {
    std::vector<std::shared_ptr<Call>> calls;
    base::MutexLock lock(&mutex_);
    calls.swap(calls_);
  }

 private:
  base::Mutex mutex_;
  std::vector<std::shared_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);
};

class PeerClientImpl final : public PeerClient {
 public:
  PeerClientImpl(std::shared_ptr<grpc::Channel> channel,
                 base::Executor* executor)
      : stub_(v1::PeerService::NewStub(std::move(channel))),
        way_back_(std::make_shared<WayBack>(executor)),
        alive_(std::make_shared<int>(0)) {
    LeftCalls::Get().Release();
  }

  ~PeerClientImpl() override {
    LeftCalls::Get().Release();
    way_back_->Close();
    for (const std::shared_ptr<Call>& call : calls_) call->context.TryCancel();
  }

  void Rendezvous(const v1::RendezvousRequest& request, absl::Duration timeout,
                  RendezvousDone done) override {
    // Shared by the client, which may cancel it, and by gRPC's callback.
    auto call = std::make_shared<Call>();
    call->request = request;
    call->done = std::move(done);
    call->context.set_deadline(std::chrono::system_clock::now() +
                               absl::ToChronoMilliseconds(timeout));
    calls_.insert(call);
    stub_->async()->Rendezvous(
        &call->context, &call->request, &call->reply,
        [this, call, way_back = way_back_, alive = std::weak_ptr<int>(alive_)](
            const grpc::Status& status) mutable {
          absl::AnyInvocable<void()&&> done = [this, call, alive,
                                               status = FromGrpc(status)] {
            if (!alive.expired()) OnDone(call, status);
          };
          if (way_back->Post(done)) return call.reset();
          done = nullptr;
          LeftCalls::Get().Add(std::move(call));
        });
  }

  void Tell(const v1::RendezvousRequest& request,
            absl::Duration timeout) override {
    auto call = std::make_shared<Call>();
    call->request = request;
    call->context.set_deadline(std::chrono::system_clock::now() +
                               absl::ToChronoMilliseconds(timeout));
    stub_->async()->Rendezvous(&call->context, &call->request, &call->reply,
                               [call](const grpc::Status&) mutable {
                                 LeftCalls::Get().Add(std::move(call));
                               });
  }

 private:
  void OnDone(const std::shared_ptr<Call>& call, const absl::Status& status) {
    calls_.erase(call);
    // May release this.
    if (status.ok()) {
      std::move(call->done)(std::move(call->reply));
    } else {
      std::move(call->done)(status);
    }
  }

  std::unique_ptr<v1::PeerService::Stub> stub_;
  const std::shared_ptr<WayBack> way_back_;
  std::set<std::shared_ptr<Call>> calls_;
  std::shared_ptr<int> alive_;  // weak in what is posted
};

}  // namespace

std::unique_ptr<PeerClient> PeerClient::Create(const std::string& address,
                                               base::Executor* executor) {
  grpc::ChannelArguments arguments;
  // The other daemon may start after this one: look again soon.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kMinReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kMinReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return std::make_unique<PeerClientImpl>(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                arguments),
      executor);
}

}  // namespace ballast::service
