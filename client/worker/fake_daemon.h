// A daemon of one worker for tests: real handle socket, real gRPC, real
// segments, and a control block that the test writes by hand. It decides
// nothing: the test says when a step is committed, published or aborted.
// Who connects anew gets new segments, as from a daemon that was started again.
//
// The job: one bucket per trainable tensor, one param group.
//
// Threading: the words may be written from any one thread.
#ifndef CLIENT_WORKER_FAKE_DAEMON_H_
#define CLIENT_WORKER_FAKE_DAEMON_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/control_block.h"
#include "proto/worker.grpc.pb.h"
#include "server/base/mutex.h"
#include "server/base/segment.h"
#include "server/base/unique_fd.h"

namespace ballast::worker {

class FakeDaemon final : public v1::WorkerService::Service {
 public:
  // What the daemon answers; set before the worker connects.
  struct Script {
    v1::BeginReply begin;      // generation 1, open step 1 by default
    uint64_t weights_lie = 0;  // added to the size that is announced
    bool refuse_hello = false;
    int passing_refusals = 0;  // of Hello, and then as many of Attach
    bool is_deaf = false;      // hears no Hello after those refusals
    int deaths_in_begin = 0;   // as many Begins see it go away
    bool comes_back = true;    // else nobody listens after the first of them
    // What the n-th Attach and Begin, from 1, are answered; OK: as usual.
    std::function<absl::Status(int)> on_attach;
    std::function<absl::Status(FakeDaemon&, int)> on_begin;
    // Close ends in a crash: before it is recorded, or before its reply.
    bool dies_in_close = false;
    bool records_close = false;
    // What happens before Begin is answered; may change the answer.
    std::function<void(FakeDaemon&, v1::BeginReply&)> in_begin;
    bool is_stopped = false;  // answers no GetStats, Detach or Close
    std::string stats = R"({"job": {"waiting_for": "rank 1 is late"}})";
  };

  explicit FakeDaemon(Script script);
  ~FakeDaemon() override;

  static Script DefaultScript();
  const std::string& address() const { return address_; }
  static constexpr int kTensorBytes = 64;

  // Waits until the worker has pushed every bucket with `word`.
  void AwaitPushed(uint64_t word);
  uint64_t pushed(int bucket);
  uint64_t step_input();
  std::string cursor();
  double lr();
  double load();

  void Open(uint64_t word);
  void Commit(uint64_t word, bool open_next = true,
              proto::StepOutcome outcome = proto::StepOutcome::kCommitted);
  void Publish(uint64_t word);
  void Fail(absl::StatusCode code, bool is_fatal, uint64_t word,
            std::string_view text);
  // As a crash: both connections close, nothing else is said.
  void HangUp();

  std::span<std::byte> initial() { return Synced(initial_).bytes(); }
  std::span<std::byte> weights() { return Synced(weights_).bytes(); }
  std::span<std::byte> gradients() { return Synced(gradients_).bytes(); }
  int num_attached() const { return num_attached_; }
  int num_detached() const { return num_detached_; }
  int num_closed() const { return num_closed_; }

  // v1::WorkerService, on gRPC's threads.
  grpc::Status Attach(grpc::ServerContext* context,
                      const v1::AttachRequest* request,
                      v1::AttachReply* reply) override;
  grpc::Status Begin(grpc::ServerContext* context,
                     const v1::BeginRequest* request,
                     v1::BeginReply* reply) override;
  grpc::Status Detach(grpc::ServerContext* context,
                      const v1::DetachRequest* request,
                      v1::DetachReply* reply) override;
  grpc::Status Close(grpc::ServerContext* context,
                     const v1::CloseRequest* request,
                     v1::CloseReply* reply) override;
  grpc::Status GetStats(grpc::ServerContext* context,
                        const v1::GetStatsRequest* request,
                        v1::GetStatsReply* reply) override;

 private:
  void Accept();
  void Welcome(base::UniqueFd peer);
  void Stay(grpc::ServerContext* context) const;
  absl::Status MakeSegments(const v1::AttachRequest& request);
  absl::Status SendSegments();
  bool KeyFits(const grpc::ServerContext& context) const;
  // What gRPC's threads made, for the test's thread. gRPC orders them itself,
  // but the thread sanitizer does not see how: the mutex shows it.
  base::Segment& Synced(base::Segment& segment) {
    base::MutexLock lock(&mutex_);
    return segment;
  }
  template <typename T>
  T* at(uint64_t offset) {
    return reinterpret_cast<T*>(Synced(control_).bytes().data() + offset);
  }
  proto::DaemonArea& area() {
    return *at<proto::DaemonArea>(layout_.daemon_area_offset);
  }
  void Wake();

  const Script script_;
  std::string directory_;
  std::string address_;
  base::UniqueFd listener_;
  base::UniqueFd handle_;
  base::UniqueFd control_end_;  // gRPC's, once more: to hang up
  std::unique_ptr<grpc::Server> server_;
  std::thread acceptor_;
  base::Mutex mutex_;
  proto::ControlBlockLayout layout_{};
  int num_buckets_ = 0;
  std::atomic<int> num_hellos_{0};
  base::Segment control_;
  base::Segment gradients_;
  base::Segment weights_;
  base::Segment initial_;
  std::atomic<int> num_attached_{0};
  std::atomic<int> num_begun_{0};
  std::atomic<int> num_detached_{0};
  std::atomic<int> num_closed_{0};
};

}  // namespace ballast::worker

#endif  // CLIENT_WORKER_FAKE_DAEMON_H_
