// A job's collectives on all its nodes in virtual time, with gradients that
// depend on (tensor, rank) only. Everything that is not a gradient or a weight
// is poison: gaps of segments, padding of the state, fresh scratch (I3, I13).
#ifndef SERVER_COLLECTIVE_COLLECTIVE_RIG_H_
#define SERVER_COLLECTIVE_COLLECTIVE_RIG_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/peer.pb.h"
#include "server/base/compute_pool.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/base/sim_executor.h"
#include "server/collective/collective.h"
#include "server/device/host/host_device.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/layout.h"
#include "server/optimizer/residuals.h"
#include "server/transport/inproc/inproc_peer_link.h"
#include "server/transport/inproc/inproc_transport.h"
#include "server/transport/inproc/link_model.h"
#include "server/transport/peer_link.h"
#include "server/transport/pulls.h"

namespace ballast::collective {

inline constexpr uint64_t kRigJobKey = 77;

// Awkward sizes and dimensions, all dtypes, one frozen, one empty.
std::vector<layout::TensorSpec> MixedTensors();

using MakeGradient = std::function<std::vector<std::byte>(
    const layout::TensorSpec& tensor, int64_t count, int index, int rank)>;
MakeGradient NoiseGradient();
MakeGradient ConstantGradient(float value);

// The masters of a whole tensor, in fp32.
std::vector<float> MasterValues(int64_t count, int index);

struct RigOptions {
  int nodes = 1;
  int workers = 1;
  uint64_t bucket_bytes = 40'000;
  uint64_t chunk_bytes = 16'384;
  int buckets_in_flight = 3;
  int64_t batch_bytes = 1;  // each chunk for itself
  uint64_t seed = 1;        // of delays and orders; never of values
  std::vector<layout::TensorSpec> tensors = MixedTensors();
  MakeGradient gradient = NoiseGradient();
  transport::LinkFaults faults = {};
  std::string exchange = "exact";  // layout/policy.h
  bool halves = false;             // Parts::halves, of every bucket
  // Of a node's weights; without, damage ends its operations.
  bool heals = false;
  absl::Duration pull_timeout = absl::InfiniteDuration();
  // Of a node, instead of one that takes random times.
  std::function<std::unique_ptr<base::ComputePool>(base::Executor* executor)>
      make_pool = nullptr;
  // Of a node's transport, to break it.
  std::function<std::unique_ptr<transport::Transport>(
      NodeRank node, transport::Transport* inner)>
      wrap_transport = nullptr;
};

class RecordingObserver final : public CollectiveObserver {
 public:
  void OnReduced(BucketId bucket, const Reduced& reduced) override;
  void OnPublished(BucketId bucket) override;
  void OnBroadcast() override;
  void OnCompared() override;
  void OnFailed(absl::Status status) override;

  std::vector<int> reduced;  // buckets in the order of the reports
  std::vector<int> published;
  int num_broadcast = 0;
  int num_compared = 0;
  Reduced total;
  std::vector<absl::Status> failures;
  bool is_inside_call = false;  // a report is an error meanwhile
  bool is_cancelled = false;    // and afterwards

 private:
  void Check() const;
};

// A host device whose private memory is full of NaNs.
class PoisonedDevice final : public device::Device {
 public:
  explicit PoisonedDevice(base::Executor* executor) : host_({}, executor) {}

  const device::Capabilities& capabilities() const override {
    return host_.capabilities();
  }
  absl::StatusOr<std::unique_ptr<device::SharedBuffer>> AllocateShared(
      uint64_t size_bytes, std::string_view name) override {
    return host_.AllocateShared(size_bytes, name);
  }
  absl::StatusOr<std::unique_ptr<device::SharedBuffer>> AllocateSparse(
      uint64_t size_bytes, uint64_t charge_bytes,
      std::string_view name) override {
    return host_.AllocateSparse(size_bytes, charge_bytes, name);
  }
  absl::StatusOr<std::unique_ptr<device::SharedBuffer>> AdoptShared(
      base::UniqueFd fd, uint64_t size_bytes, uint64_t charge_bytes,
      std::string_view name) override {
    return host_.AdoptShared(std::move(fd), size_bytes, charge_bytes, name);
  }
  absl::StatusOr<std::unique_ptr<device::PrivateBuffer>> AllocatePrivate(
      uint64_t size_bytes, std::string_view name) override;
  std::unique_ptr<device::Queue> CreateQueue() override {
    return host_.CreateQueue();
  }
  uint64_t shared_bytes_in_use() const override {
    return host_.shared_bytes_in_use();
  }
  uint64_t private_bytes_in_use() const override {
    return host_.private_bytes_in_use();
  }

 private:
  device::HostDevice host_;
};

// A node's pulls over its own link.
class RigPulls final : public transport::PeerLinkObserver,
                       private transport::PullFramePort {
 public:
  RigPulls(std::unique_ptr<transport::PeerLink> link,
           transport::Transport* transport, base::Executor* executor);
  ~RigPulls() override;

  transport::Pulls& pulls() { return pulls_; }

 private:
  void OnFrame(NodeRank from, std::string frame) override;
  absl::Status SendPull(NodeRank to, const v1::Pull& frame) override;

  const std::unique_ptr<transport::PeerLink> link_;
  transport::Pulls pulls_;
};

class Rig {
 public:
  explicit Rig(const RigOptions& options);
  ~Rig();

  const layout::Layout& layout() const { return layout_; }
  base::SimExecutor& world() { return world_; }
  transport::LinkModel& links() { return links_; }
  transport::InprocPeerNetwork& frames() { return frames_; }
  transport::Pulls& pulls(int node) { return nodes_[node].pulls->pulls(); }
  PoisonedDevice& device() { return device_; }
  const std::vector<std::string>& log(int node) { return nodes_[node].log; }
  RecordingObserver& observer(int node) { return nodes_[node].observer; }
  Collective* collective(int node) { return nodes_[node].collective.get(); }
  std::vector<std::byte>& weights(int node) { return nodes_[node].weights; }
  std::vector<float>& master(int node) { return nodes_[node].master; }
  // Of weights as they are when the first collectives are made.
  PublishedChunks& published(int node) { return *nodes_[node].published; }
  // Null without error feedback.
  optimizer::Residuals* residuals(int node) {
    return nodes_[node].residuals.get();
  }
  // Updates applied so far, for collectives made from now on.
  void SetOptimizerStep(int64_t step) { optimizer_step_ = step; }
  const layout::ExchangePlan& plan() const { return plan_; }
  std::vector<float>& state_gradient(int node) {
    return nodes_[node].state_gradient;
  }
  std::vector<std::byte>& gradients(int node, int local_rank) {
    return nodes_[node].gradients[local_rank];
  }
  Parts PartsOf(int node);

  void CreateAll(Generation generation);
  // `call` on each node's collective, in an order that the seed draws.
  void OnEachNode(const std::function<void(Collective*)>& call);
  // Every bucket on every node, each node in an order of its own.
  void StartReduceAll(Step step);
  void StartPublishAll(Step step);
  void Settle();
  void CancelAll();     // and waits for the answers
  void Kill(int node);  // its process is gone

  // One full reduction, checked to have reported each bucket once.
  void ReduceAll(Step step);

  // Of every trainable tensor, gathered from its owners' state gradients in a
  // partition group; and the norm over all nodes.
  std::vector<std::vector<float>> Means(int group = 0);
  kernels::ExactSum Norm();
  // Of all nodes, by metered tensor of the window.
  std::vector<ErrorSums> Errors(layout::Path path, Step step);
  double RelativeError(layout::Path path, Step step);  // of all of them

 private:
  struct Node {
    std::unique_ptr<base::SimProcess> process;
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<transport::Transport> wrapped;  // null: none
    std::unique_ptr<RigPulls> pulls;
    std::unique_ptr<base::ComputePool> pool;
    std::vector<std::vector<std::byte>> gradients;
    std::vector<std::byte> weights;
    std::vector<float> state_gradient;
    std::vector<float> master;  // of "noise", its padding poisoned
    std::unique_ptr<PublishedChunks> published;
    std::vector<std::string> log;
    std::unique_ptr<optimizer::Residuals> residuals;
    RecordingObserver observer;
    std::unique_ptr<Collective> collective;
  };

  void MakeNode(int rank);
  std::vector<int> Shuffled(int count);
  void Call(int node, const std::function<void(Collective*)>& call);

  const RigOptions options_;
  const layout::Layout layout_;
  layout::ExchangePlan plan_;  // of all nodes
  base::SimExecutor world_;
  transport::LinkModel links_;
  transport::InprocNetwork network_;
  transport::InprocPeerNetwork frames_;
  PoisonedDevice device_;
  int64_t optimizer_step_ = 0;
  std::vector<Node> nodes_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_COLLECTIVE_RIG_H_
