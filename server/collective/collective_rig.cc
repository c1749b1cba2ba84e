#include "server/collective/collective_rig.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "kernels/reference/reference.h"
#include "server/base/random.h"
#include "server/base/sim_compute_pool.h"
#include "server/base/status_matchers.h"
#include "server/layout/policy.h"

namespace ballast::collective {
namespace {

constexpr std::byte kPoison{0xff};  // a NaN in every dtype
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

layout::Layout MakeLayout(const RigOptions& options) {
  return *layout::Layout::Create(
      options.tensors,
      {options.nodes, options.workers,
       layout::ParsePolicy(options.exchange)->partition_nodes},
      1,
      {.bucket_bytes = options.bucket_bytes,
       .chunk_bytes = options.chunk_bytes});
}

}  // namespace

std::vector<layout::TensorSpec> MixedTensors() {
  using kernels::DType;
  return {{"scalar", {}, DType::kFloat32},
          {"empty", {0}, DType::kBFloat16},
          {"seven", {7}, DType::kFloat16},
          {"frozen", {333}, DType::kBFloat16, false},
          {"below", {2047}, DType::kBFloat16},
          {"cell", {2048}, DType::kFloat32},
          {"above", {2049}, DType::kFloat16},
          {"cube", {13, 17, 19}, DType::kBFloat16},
          {"large", {20003}, DType::kFloat32},
          {"four", {2, 3, 5, 7}, DType::kFloat16}};
}

MakeGradient NoiseGradient() {
  return [](const layout::TensorSpec& tensor, int64_t count, int index,
            int rank) {
    base::SeededRandom random(1000 * index + rank);
    std::vector<float> values(count);
    for (float& value : values) {
      value = static_cast<float>(random.Below(2'000'001)) / 1e6f - 1;
    }
    std::vector<std::byte> bytes(count * SizeOf(tensor.dtype));
    kernels::Reference().cast(values.data(), tensor.dtype, count, bytes.data());
    return bytes;
  };
}

MakeGradient ConstantGradient(float value) {
  return [value](const layout::TensorSpec& tensor, int64_t count, int, int) {
    const std::vector<float> values(count, value);
    std::vector<std::byte> bytes(count * SizeOf(tensor.dtype));
    kernels::Reference().cast(values.data(), tensor.dtype, count, bytes.data());
    return bytes;
  };
}

std::vector<float> MasterValues(int64_t count, int index) {
  base::SeededRandom random(5'000'000 + index);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(random.Below(2'000'001)) / 1e7f - 0.1f;
  }
  return values;
}

void RecordingObserver::Check() const {
  EXPECT_FALSE(is_inside_call);
  EXPECT_FALSE(is_cancelled);
  EXPECT_TRUE(failures.empty()) << "a report after OnFailed";
}

void RecordingObserver::OnReduced(BucketId bucket, const Reduced& of_bucket) {
  Check();
  reduced.push_back(bucket.value());
  total.norm2.Merge(of_bucket.norm2);
  total.finite = total.finite && of_bucket.finite;
}

void RecordingObserver::OnPublished(BucketId bucket) {
  Check();
  published.push_back(bucket.value());
}

void RecordingObserver::OnBroadcast() {
  Check();
  ++num_broadcast;
}

void RecordingObserver::OnCompared() {
  Check();
  ++num_compared;
}

void RecordingObserver::OnFailed(absl::Status status) {
  Check();
  failures.push_back(std::move(status));
}

absl::StatusOr<std::unique_ptr<device::PrivateBuffer>>
PoisonedDevice::AllocatePrivate(uint64_t size_bytes, std::string_view name) {
  auto buffer = host_.AllocatePrivate(size_bytes, name);
  if (buffer.ok()) std::ranges::fill((*buffer)->bytes(), kPoison);
  return buffer;
}

RigPulls::RigPulls(std::unique_ptr<transport::PeerLink> link,
                   transport::Transport* transport, base::Executor* executor)
    : link_(std::move(link)),
      pulls_({.transport = transport,
              .executor = executor,
              .frames = this,
              .job_key = kRigJobKey}) {
  link_->SetObserver(this);
}

RigPulls::~RigPulls() { link_->SetObserver(nullptr); }

void RigPulls::OnFrame(NodeRank from, std::string frame) {
  v1::Pull pull;
  ASSERT_TRUE(pull.ParseFromString(frame));
  pulls_.OnFrame(from, pull);
}

absl::Status RigPulls::SendPull(NodeRank to, const v1::Pull& frame) {
  return link_->Send(to, frame.SerializeAsString());
}

Rig::Rig(const RigOptions& options)
    : options_(options),
      layout_(MakeLayout(options)),
      plan_(*layout::ParsePolicy(options.exchange), layout_),
      world_(options.seed),
      links_(&world_, options.seed, options.faults),
      network_(&links_),
      frames_(&links_),
      device_(&world_),
      nodes_(options.nodes) {
  for (int rank = 0; rank < options.nodes; ++rank) MakeNode(rank);
}

Rig::~Rig() {
  for (Node& node : nodes_) node.collective.reset();
  for (Node& node : nodes_) node.pulls.reset();
  for (Node& node : nodes_) node.wrapped.reset();
  for (Node& node : nodes_) node.transport.reset();
}

void Rig::MakeNode(int rank) {
  Node& node = nodes_[rank];
  node.process = std::make_unique<base::SimProcess>(
      &world_, "node " + std::to_string(rank));
  if (options_.make_pool) {
    node.pool = options_.make_pool(node.process.get());
  } else {
    node.pool = std::make_unique<base::SimComputePool>(
        node.process.get(), options_.seed + rank,
        1 + (rank + options_.seed) % 3);
  }
  node.transport = *network_.AddNode(NodeRank(rank), node.process.get());
  node.weights.assign(layout_.weights_bytes(), kPoison);
  if (options_.wrap_transport) {
    node.wrapped =
        options_.wrap_transport(NodeRank(rank), node.transport.get());
  }
  node.pulls = std::make_unique<RigPulls>(
      *frames_.AddNode(NodeRank(rank), node.process.get()),
      node.wrapped != nullptr ? node.wrapped.get() : node.transport.get(),
      node.process.get());
  node.state_gradient.assign(layout_.state_elements(NodeRank(rank)), kNan);
  node.master.assign(layout_.state_elements(NodeRank(rank)), kNan);
  if (plan_.feeds_back()) {
    auto residuals =
        optimizer::Residuals::Create(&device_, layout_, NodeRank(rank));
    ASSERT_THAT(residuals, base::IsOk());
    node.residuals = *std::move(residuals);
  }
  std::vector<std::vector<float>> masters;
  for (const layout::TensorPlace& place : layout_.places()) {
    masters.push_back(
        MasterValues(place.num_elements, static_cast<int>(masters.size())));
  }
  for (const layout::Bucket& bucket : layout_.buckets()) {
    for (const layout::Piece& piece :
         layout_.shard(bucket.id, NodeRank(rank)).pieces) {
      std::copy_n(masters[piece.tensor.value()].begin() + piece.begin,
                  piece.size(), node.master.begin() + piece.state_offset);
    }
  }
  for (int local = 0; local < options_.workers; ++local) {
    std::vector<std::byte>& segment =
        node.gradients.emplace_back(layout_.gradients_bytes(), kPoison);
    for (size_t i = 0; i < layout_.tensors().size(); ++i) {
      if (!layout_.tensors()[i].trainable) continue;
      const std::vector<std::byte> bytes = options_.gradient(
          layout_.tensors()[i], layout_.places()[i].num_elements,
          static_cast<int>(i), rank * options_.workers + local);
      std::ranges::copy(bytes,
                        segment.begin() + layout_.places()[i].gradient_offset);
    }
  }
}

Parts Rig::PartsOf(int rank) {
  Node& node = nodes_[rank];
  return {.layout = &layout_,
          .node = NodeRank(rank),
          .job_key = kRigJobKey,
          .kernels = &kernels::Reference(),
          .pool = node.pool.get(),
          .device = &device_,
          .transport = options_.nodes == 1       ? nullptr
                       : node.wrapped != nullptr ? node.wrapped.get()
                                                 : node.transport.get(),
          .gradients = {node.gradients.begin(), node.gradients.end()},
          .weights = node.weights,
          .state_gradient = node.state_gradient,
          .plan = &plan_,
          .master = node.master,
          .published = node.published.get(),
          .pulls = options_.heals && options_.nodes > 1 ? &node.pulls->pulls()
                                                        : nullptr,
          .executor = node.process.get(),
          .pull_timeout = options_.pull_timeout,
          .log = [&node](const std::string& line) { node.log.push_back(line); },
          .residuals = node.residuals.get(),
          .optimizer_step = optimizer_step_,
          .buckets_in_flight = options_.buckets_in_flight,
          .batch_bytes = options_.batch_bytes,
          .halves = [halves = options_.halves](uint64_t) { return halves; },
          .observer = &node.observer};
}

void Rig::CreateAll(Generation generation) {
  for (size_t rank = 0; rank < nodes_.size(); ++rank) {
    nodes_[rank].collective.reset();
    nodes_[rank].observer = {};
    if (nodes_[rank].published == nullptr) {
      nodes_[rank].published = std::make_unique<PublishedChunks>(&layout_);
      nodes_[rank].published->Initialize(nodes_[rank].weights,
                                         WeightVersion(0));
    }
    auto collective = Collective::Create(PartsOf(rank), generation);
    ASSERT_THAT(collective, base::IsOk());
    nodes_[rank].collective = *std::move(collective);
  }
}

std::vector<int> Rig::Shuffled(int count) {
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (int i = count - 1; i > 0; --i) {
    std::swap(order[i], order[world_.random().Below(i + 1)]);
  }
  return order;
}

void Rig::Call(int node, const std::function<void(Collective*)>& call) {
  if (nodes_[node].collective == nullptr) return;
  nodes_[node].observer.is_inside_call = true;
  call(nodes_[node].collective.get());
  nodes_[node].observer.is_inside_call = false;
}

void Rig::OnEachNode(const std::function<void(Collective*)>& call) {
  for (const int node : Shuffled(options_.nodes)) Call(node, call);
}

void Rig::StartReduceAll(Step step) {
  OnEachNode([&](Collective* collective) {
    for (const int bucket : Shuffled(layout_.buckets().size())) {
      collective->StartReduce(BucketId(bucket), step);
    }
  });
}

void Rig::StartPublishAll(Step step) {
  OnEachNode([&](Collective* collective) {
    for (const int bucket : Shuffled(layout_.buckets().size())) {
      collective->StartPublish(BucketId(bucket), step);
    }
  });
}

void Rig::Settle() { ASSERT_TRUE(world_.RunUntilIdle(10'000'000)); }

void Rig::CancelAll() {
  int num_answers = 0;
  int num_nodes = 0;
  for (size_t node = 0; node < nodes_.size(); ++node) {
    if (nodes_[node].collective == nullptr) continue;
    ++num_nodes;
    Call(node, [&](Collective* collective) {
      nodes_[node].observer.is_cancelled = true;
      collective->Cancel([&] { ++num_answers; });
      EXPECT_EQ(num_answers, 0);
    });
  }
  Settle();
  EXPECT_EQ(num_answers, num_nodes);
}

void Rig::Kill(int rank) {
  Node& node = nodes_[rank];
  node.collective.reset();
  node.pulls.reset();
  node.wrapped.reset();
  node.transport.reset();
  node.process.reset();  // what it had queued never runs
  node.pool.reset();
}

void Rig::ReduceAll(Step step) {
  for (Node& node : nodes_) {
    node.observer.reduced.clear();
    node.observer.total = {};
  }
  StartReduceAll(step);
  Settle();
  std::vector<int> all(layout_.buckets().size());
  std::iota(all.begin(), all.end(), 0);
  for (Node& node : nodes_) {
    std::vector<int> sorted = node.observer.reduced;
    std::ranges::sort(sorted);
    EXPECT_EQ(sorted, all);
    EXPECT_TRUE(node.observer.failures.empty());
  }
}

std::vector<std::vector<float>> Rig::Means(int group) {
  std::vector<std::vector<float>> means(layout_.tensors().size());
  for (size_t i = 0; i < means.size(); ++i) {
    if (layout_.tensors()[i].trainable) {
      means[i].resize(layout_.places()[i].num_elements);
    }
  }
  for (const layout::Bucket& bucket : layout_.buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      const Node& owner =
          nodes_[layout_.topology().NodeAt(group, shard.owner).value()];
      for (const layout::Piece& piece : shard.pieces) {
        std::copy_n(owner.state_gradient.begin() + piece.state_offset,
                    piece.size(),
                    means[piece.tensor.value()].begin() + piece.begin);
      }
    }
  }
  return means;
}

std::vector<ErrorSums> Rig::Errors(layout::Path path, Step step) {
  std::vector<ErrorSums> sums;
  for (Node& node : nodes_) {
    const PathErrors errors = node.collective->Errors(path, step);
    sums.resize(errors.tensors.size());
    for (size_t i = 0; i < sums.size(); ++i) sums[i].Merge(errors.tensors[i]);
  }
  return sums;
}

double Rig::RelativeError(layout::Path path, Step step) {
  ErrorSums whole;
  for (const ErrorSums& sums : Errors(path, step)) whole.Merge(sums);
  return whole.Relative();
}

kernels::ExactSum Rig::Norm() {
  kernels::ExactSum norm;
  for (Node& node : nodes_) norm.Merge(node.observer.total.norm2);
  return norm;
}

}  // namespace ballast::collective
