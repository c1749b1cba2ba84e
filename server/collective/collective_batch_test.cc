// Batches: that they change no bit and no byte of payload, and that encoding,
// wire and decoding overlap.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/exact_sum.h"
#include "server/base/compute_pool.h"
#include "server/base/executor.h"
#include "server/collective/collective_rig.h"
#include "server/layout/exchange_plan.h"
#include "server/transport/transport.h"

namespace ballast::collective {
namespace {

constexpr int64_t kWholeBucket = std::numeric_limits<int64_t>::max();

const char* const kPolicies[] = {
    "exact", "zeropp",
    "weights.codec=int4 weights.block=64 gradients.codec=int4 "
    "gradients.hadamard=32 gradients.rounding=stochastic seed=9"};

struct Outcome {
  std::vector<std::vector<float>> means;
  kernels::ExactSum norm;
  std::vector<std::vector<std::byte>> weights;  // by node
  std::vector<uint64_t> payload;                // by node
};

Outcome RunSteps(const RigOptions& options) {
  Rig rig(options);
  rig.CreateAll(Generation(1));
  for (int node = 0; node < options.nodes; ++node) {
    std::ranges::fill(rig.weights(node), static_cast<std::byte>(node));
  }
  for (int64_t step = 1; step <= 2; ++step) {
    rig.ReduceAll(Step(step));
    rig.StartPublishAll(Step(step));
    rig.Settle();
  }
  Outcome outcome;
  outcome.means = rig.Means();
  outcome.norm = rig.Norm();
  for (int node = 0; node < options.nodes; ++node) {
    outcome.weights.push_back(rig.weights(node));
    outcome.payload.push_back(rig.collective(node)->byte_counts().payload_sent);
  }
  return outcome;
}

TEST(CollectiveBatchTest, BitsDoNotDependOnBatches) {  // I9, I21, I25
  for (const std::string policy : kPolicies) {
    for (const auto& [nodes, workers] : {std::pair(2, 3), std::pair(5, 2)}) {
      RigOptions options{.nodes = nodes,
                         .workers = workers,
                         .bucket_bytes = 1 << 22,
                         .batch_bytes = kWholeBucket,
                         .exchange = policy};
      const Outcome whole = RunSteps(options);
      for (const uint64_t chunk_bytes : {1, 20'000}) {
        for (const int64_t batch_bytes : {1, 9'000, 30'000}) {
          options.chunk_bytes = chunk_bytes;  // 1: a cell
          options.batch_bytes = batch_bytes;
          ++options.seed;
          const Outcome outcome = RunSteps(options);
          EXPECT_EQ(outcome.means, whole.means) << policy;
          EXPECT_EQ(outcome.norm, whole.norm);
          EXPECT_EQ(outcome.weights, whole.weights) << policy;
          EXPECT_EQ(outcome.payload, whole.payload) << policy;
        }
      }
    }
  }
}

// Another transport between a node and the network.
class Wrapped : public transport::Transport {
 public:
  explicit Wrapped(transport::Transport* inner) : inner_(inner) {}
  const transport::Capabilities& capabilities() const override {
    return inner_->capabilities();
  }
  NodeRank self() const override { return inner_->self(); }
  absl::StatusOr<std::unique_ptr<transport::Exchange>> Prepare(
      const transport::ExchangeSpec& spec,
      transport::ExchangeObserver* observer) override {
    transport::ExchangeSpec changed = spec;
    Change(&changed);
    return inner_->Prepare(changed, observer);
  }

 private:
  virtual void Change(transport::ExchangeSpec* spec) = 0;

  transport::Transport* const inner_;
};

// Takes batch 0 for batch 1 and the other way round.
class Renumbering final : public Wrapped {
 public:
  using Wrapped::Wrapped;

 private:
  void Change(transport::ExchangeSpec* spec) override {
    if (spec->phase >> 8 < 2) spec->phase ^= 1 << 8;
  }
};

// Negative control: batches count, so one taken for another is found.
TEST(CollectiveBatchTest, ABatchTakenForAnotherIsFound) {  // I7, I19
  for (const std::string policy : {"exact", "zeropp"}) {
    RigOptions options{.nodes = 2,
                       .bucket_bytes = 1 << 20,
                       .chunk_bytes = 8192,
                       .tensors = {{"even", {2 * 4 * 2048}}},
                       .exchange = policy};
    const Outcome right = RunSteps(options);
    options.wrap_transport = [](NodeRank node, transport::Transport* inner)
        -> std::unique_ptr<transport::Transport> {
      if (node == NodeRank(0)) return nullptr;
      return std::make_unique<Renumbering>(inner);
    };
    EXPECT_NE(RunSteps(options).means, right.means) << policy;
  }
}

constexpr absl::Duration kTaskTime = absl::Milliseconds(1);

// Every task takes the same time.
class EvenPool final : public base::ComputePool {
 public:
  EvenPool(base::Executor* executor, int num_threads)
      : executor_(executor), is_busy_(num_threads) {}

  int num_threads() const override { return static_cast<int>(is_busy_.size()); }
  void Submit(base::Task* task) override {
    waiting_.push_back(task);
    StartNext();
  }

 private:
  void StartNext() {
    const auto free = std::ranges::find(is_busy_, false);
    if (waiting_.empty() || free == is_busy_.end()) return;
    *free = true;
    base::Task* const task = waiting_.front();
    waiting_.pop_front();
    executor_->PostAfter(kTaskTime,
                         [this, task, thread = free - is_busy_.begin()] {
                           task->Run(static_cast<int>(thread));
                           is_busy_[thread] = false;
                           StartNext();
                           task->Done();
                         });
  }

  base::Executor* const executor_;
  std::deque<base::Task*> waiting_;
  std::vector<bool> is_busy_;
};

// One bucket of two shards of kChunks chunks each.
struct Race {
  std::string policy;
  int threads;
  double chunks_per_second;  // of the link
  bool is_publish;
};

constexpr int kChunks = 32;

struct Times {
  absl::Duration encode, wire, decode;  // each alone
  absl::Duration measured;
};

Times Measure(const Race& race, int64_t batch_bytes) {
  constexpr int64_t kElements = 2 * kChunks * 2048;  // a chunk is a cell
  const RigOptions options{.nodes = 2,
                           .bucket_bytes = 1 << 24,
                           .chunk_bytes = 8192,
                           .batch_bytes = batch_bytes,
                           .tensors = {{"w", {kElements}}},
                           .exchange = race.policy,
                           .make_pool = [&race](base::Executor* executor) {
                             return std::make_unique<EvenPool>(executor,
                                                               race.threads);
                           }};
  Rig rig(options);
  const layout::PayloadBytes bytes =
      rig.plan().PerStep(rig.layout(), NodeRank(0));
  const double rate = race.chunks_per_second / kChunks *
                      (race.is_publish ? bytes.weights : bytes.gradients);
  rig.links().SetFaults({.bytes_per_second = rate});
  rig.links().ShareRate(&rig.world());
  rig.CreateAll(Generation(1));
  EXPECT_EQ(rig.layout().buckets().size(), 1u);
  const absl::Time start = rig.world().Now();
  if (race.is_publish) {
    rig.StartPublishAll(Step(1));
    rig.Settle();
  } else {
    rig.ReduceAll(Step(1));
  }
  const int encoded = race.is_publish ? kChunks : 2 * kChunks;
  return {
      .encode = encoded * kTaskTime / race.threads,
      .wire = absl::Seconds(rig.links().sent_bytes(NodeRank(0)) / rate),
      .decode = kChunks * kTaskTime / race.threads,
      .measured = rig.world().Now() - start,
  };
}

// The tasks share one pool: what bounds a bucket is the wire, or the pool.
TEST(CollectiveBatchTest, EncodingWireAndDecodingOverlap) {
  for (const std::string policy : kPolicies) {
    for (const bool is_publish : {false, true}) {
      if (is_publish && policy == "exact") continue;  // nothing is encoded
      for (const auto& [threads, chunks_per_second] :
           {std::pair(4, 1000), std::pair(1, 1000), std::pair(2, 500)}) {
        const Race race{policy, threads, static_cast<double>(chunks_per_second),
                        is_publish};
        const Times batched = Measure(race, 1);
        const absl::Duration slowest =
            std::max(batched.wire, batched.encode + batched.decode);
        const absl::Duration one_batch =
            (batched.encode + batched.wire + batched.decode) / kChunks +
            2 * kTaskTime;
        EXPECT_GE(batched.measured, slowest);
        // 4 %: the executor's jitter between tasks.
        EXPECT_LE(batched.measured, 1.04 * slowest + one_batch)
            << policy << ", " << threads << " threads";
        // The control: in one piece, it is the sum.
        const Times whole = Measure(race, kWholeBucket);
        EXPECT_GE(whole.measured, whole.encode + whole.wire + whole.decode);
        EXPECT_GT(whole.measured, 1.25 * batched.measured);
      }
    }
  }
}

}  // namespace
}  // namespace ballast::collective
