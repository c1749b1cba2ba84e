#include "server/daemon/timed_transport.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/transport/inproc/inproc_transport.h"
#include "server/transport/inproc/link_model.h"

namespace ballast::daemon {
namespace {

class Observer final : public transport::ExchangeObserver {
 public:
  void OnExchangeDone(transport::Exchange* exchange, Step,
                      const absl::Status& status) override {
    EXPECT_THAT(status, base::IsOk());
    done.push_back(exchange);
  }
  std::vector<transport::Exchange*> done;
};

TEST(TimedTransportTest, MeasuresTheNamedPhasesOnly) {
  base::SimExecutor world(1);
  transport::LinkFaults link;
  link.min_delay = link.max_delay = absl::Milliseconds(10);
  transport::LinkModel links(&world, 1, link);
  transport::InprocNetwork network(&links);
  auto left = *network.AddNode(NodeRank(0), &world);
  auto right = *network.AddNode(NodeRank(1), &world);
  metrics::Histogram reduce({0.001, 1});
  TimedTransport timed(left.get(), &world, {{2, &reduce}});
  EXPECT_EQ(timed.self(), NodeRank(0));
  EXPECT_EQ(timed.capabilities().name, "inproc");

  std::vector<std::byte> out(100), in(100);
  for (const uint32_t phase : {2u, 3u, 5u << 8 | 3u}) {
    Observer observer;
    transport::ExchangeSpec send{.generation = Generation(1), .phase = phase};
    transport::ExchangeSpec receive = send;
    send.sends = {{NodeRank(1), out}};
    receive.receives = {{NodeRank(0), in}};
    auto sender = timed.Prepare(send, &observer);
    auto receiver = right->Prepare(receive, &observer);
    ASSERT_THAT(sender, base::IsOk());
    ASSERT_THAT(receiver, base::IsOk());
    EXPECT_EQ(timed.num_posted(), 0);
    ASSERT_THAT((*sender)->Post(Step(1)), base::IsOk());
    EXPECT_TRUE((*sender)->is_posted());
    EXPECT_EQ(timed.num_posted(), phase == 2u ? 1 : 0);
    ASSERT_THAT((*receiver)->Post(Step(1)), base::IsOk());
    while (world.Step()) {
    }
    ASSERT_EQ(observer.done.size(), 2u);
    // The caller hears of the exchange that it holds.
    EXPECT_TRUE(observer.done[0] == sender->get() ||
                observer.done[1] == sender->get());
    EXPECT_EQ((*sender)->counters().payload_sent, 100u);
    EXPECT_EQ(reduce.count(1), 1u);  // 10 ms, phase 2 alone
    EXPECT_EQ(reduce.count(0) + reduce.count(2), 0u);
    EXPECT_EQ(timed.num_posted(), 0);
  }
}

// Also without a histogram, and however it ends.
TEST(TimedTransportTest, KnowsWhatIsUnderWay) {
  base::SimExecutor world(1);
  transport::LinkModel links(&world, 1, {});
  transport::InprocNetwork network(&links);
  auto left = *network.AddNode(NodeRank(0), &world);
  auto right = *network.AddNode(NodeRank(1), &world);
  TimedTransport timed(left.get(), &world, {{2, nullptr}});
  std::vector<std::byte> out(100);
  Observer observer;
  transport::ExchangeSpec send{.generation = Generation(1), .phase = 2};
  send.sends = {{NodeRank(1), out}};
  auto first = timed.Prepare(send, &observer);
  send.bucket = BucketId(1);
  auto second = timed.Prepare(send, &observer);
  ASSERT_THAT((*first)->Post(Step(1)), base::IsOk());
  ASSERT_THAT((*second)->Post(Step(1)), base::IsOk());
  EXPECT_FALSE((*second)->Post(Step(1)).ok());
  EXPECT_EQ(timed.num_posted(), 2);
  (*first)->Cancel();
  EXPECT_EQ(timed.num_posted(), 1);
  (*first)->Cancel();
  EXPECT_EQ(timed.num_posted(), 1);
  second->reset();
  EXPECT_EQ(timed.num_posted(), 0);
}

}  // namespace
}  // namespace ballast::daemon
