// T0 (d): after any weight change nobody gets an older version. A worker that
// is told of a version of a bucket reads exactly its bits, never an older
// version or a mixture, until it pushes again (Cluster::OnRead compares).
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference.h"
#include "server/base/executor.h"
#include "server/collective/parts.h"
#include "server/layout/layout.h"
#include "server/transport/pulls.h"
#include "server/transport/transport.h"
#include "tests/sim/cluster.h"
#include "tests/sim/scenario.h"

namespace ballast::sim {
namespace {

struct Shape {
  int nodes;
  int workers;
};

constexpr Shape kShapes[] = {{1, 1}, {1, 4}, {2, 3}, {3, 2},
                             {2, 4}, {5, 3}, {3, 8}};

Scenario MakeScenario(const Shape& shape, const std::string& exchange,
                      bool overlap) {
  const auto parsed = ParseScenario("freshness", R"(
tensor wte float32 3x20011
tensor half bfloat16 5x1000
tensor odd float16 13x17x19
tensor one float32 scalar
tensor none float32 0
optimizer adamw lr 0.02 weight_decay 0.1
steps 4
)");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  Scenario scenario = *parsed;
  scenario.nodes = shape.nodes;
  scenario.workers = shape.workers;
  scenario.bucket_bytes = 50'000;
  scenario.chunk_bytes = 10'000;
  scenario.exchange = exchange;
  scenario.overlap = overlap;
  return scenario;
}

// Pieces that every worker reads of one version.
int64_t NumPieces(const Scenario& scenario) {
  const layout::Layout layout = *layout::Layout::Create(
      scenario.tensors, {scenario.nodes, scenario.workers}, 1,
      {.bucket_bytes = scenario.bucket_bytes,
       .chunk_bytes = scenario.chunk_bytes});
  int64_t count = 0;
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      count += shard.pieces.size();
    }
  }
  return count;
}

TEST(FreshnessTest, WhoIsToldOfAVersionReadsIt) {  // T0 (d), I1, I2
  uint64_t seed = 100;
  for (const Shape& shape : kShapes) {
    for (const std::string exchange :
         {"exact", "zeropp", "exact secondary_partition=none",
          "zeropp secondary_partition=none"}) {
      for (const bool overlap : {false, true}) {
        const bool is_gathered = absl::StrContains(exchange, "none");
        if (is_gathered && overlap) continue;
        const Scenario scenario = MakeScenario(shape, exchange, overlap);
        const Result result =
            Cluster(scenario, ++seed, kernels::Reference()).Run();
        for (const std::string& violation : result.violations) {
          ADD_FAILURE() << shape.nodes << "x" << shape.workers << " "
                        << exchange << " seed " << seed << ": " << violation;
        }
        // Versions 0 to 4 when told of them, or gathered for forward; 0 to 3
        // before the next push too, or gathered again, and then once more as
        // the unit is given back.
        EXPECT_EQ(result.reads, (is_gathered ? 13 : 9) * NumPieces(scenario) *
                                    shape.nodes * shape.workers);
      }
    }
  }
}

// Says that weights have come as soon as they are asked for.
class HastyExchange final : public transport::Exchange,
                            private transport::ExchangeObserver {
 public:
  HastyExchange(base::Executor* executor, transport::ExchangeObserver* observer)
      : executor_(executor), observer_(observer) {}
  ~HastyExchange() override { *is_alive_ = false; }

  absl::Status Prepare(transport::Transport* inner,
                       const transport::ExchangeSpec& spec) {
    auto exchange = inner->Prepare(spec, this);
    if (exchange.ok()) inner_ = *std::move(exchange);
    return exchange.status();
  }
  absl::Status Post(Step step) override {
    executor_->Post([this, step, is_alive = is_alive_] {
      if (*is_alive) {
        observer_->OnExchangeDone(this, step, absl::OkStatus());
      }
    });
    return inner_->Post(step);
  }
  void Cancel() override { inner_->Cancel(); }
  bool is_posted() const override { return inner_->is_posted(); }
  const transport::ByteCounters& counters() const override {
    return inner_->counters();
  }

 private:
  void OnExchangeDone(Exchange*, Step, const absl::Status&) override {}

  base::Executor* const executor_;
  transport::ExchangeObserver* const observer_;
  const std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);
  std::unique_ptr<transport::Exchange> inner_;
};

class HastyTransport final : public transport::Transport {
 public:
  HastyTransport(transport::Transport* inner, base::Executor* executor)
      : inner_(inner), executor_(executor) {}
  const transport::Capabilities& capabilities() const override {
    return inner_->capabilities();
  }
  NodeRank self() const override { return inner_->self(); }
  absl::StatusOr<std::unique_ptr<transport::Exchange>> Prepare(
      const transport::ExchangeSpec& spec,
      transport::ExchangeObserver* observer) override {
    const uint32_t phase = collective::PhaseOf(spec.phase);
    if (phase != collective::kPublishPhase &&
        (phase != transport::kPullPhase || spec.receives.empty())) {
      return inner_->Prepare(spec, observer);
    }
    auto exchange = std::make_unique<HastyExchange>(executor_, observer);
    const absl::Status status = exchange->Prepare(inner_, spec);
    if (!status.ok()) return status;
    return exchange;
  }

 private:
  transport::Transport* const inner_;
  base::Executor* const executor_;
};

// Negative control: a daemon that publishes the word before the bytes are
// there is found, on every path between nodes.
TEST(FreshnessTest, AWordBeforeItsBytesIsFound) {
  for (const Shape& shape : {Shape{2, 3}, Shape{3, 2}}) {
    for (const std::string exchange :
         {"exact", "zeropp", "exact secondary_partition=none",
          "zeropp secondary_partition=none"}) {
      const Scenario scenario = MakeScenario(shape, exchange, false);
      const Result result =
          Cluster(scenario, 7, kernels::Reference(),
                  [](transport::Transport* inner, base::Executor* executor) {
                    return std::make_unique<HastyTransport>(inner, executor);
                  })
              .Run();
      bool is_found = false;
      for (const std::string& violation : result.violations) {
        is_found = is_found || absl::StartsWith(violation, "I1: ");
      }
      EXPECT_TRUE(is_found) << exchange;
    }
  }
}

}  // namespace
}  // namespace ballast::sim
