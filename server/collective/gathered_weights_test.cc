#include "server/collective/gathered_weights.h"

#include <sys/stat.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference.h"
#include "server/base/sim_compute_pool.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/device/host/host_device.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/policy.h"
#include "server/transport/inproc/inproc_transport.h"
#include "server/transport/inproc/link_model.h"

namespace ballast::collective {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kNodes = 3;

class Recorder final : public GatherObserver {
 public:
  struct Held {
    int rank;
    int unit;
    uint64_t request;
    int64_t version;
    bool operator==(const Held&) const = default;
  };
  void OnHeld(LocalRank rank, int unit, uint64_t request,
              WeightVersion version) override {
    held.push_back({rank.value(), unit, request, version.value()});
  }
  void OnNotHeld(LocalRank rank, int unit, uint64_t) override {
    lost.emplace_back(rank.value(), unit);
  }
  void OnRefused(LocalRank, int, uint64_t, const absl::Status& why) override {
    refusals.push_back(why);
  }
  void OnGatherFailed(const absl::Status& why) override {
    failures.push_back(why);
  }
  std::vector<Held> held;
  std::vector<std::pair<int, int>> lost;
  std::vector<absl::Status> refusals;
  std::vector<absl::Status> failures;
};

// Three nodes whose own parts hold bytes that say owner and version.
class GatheredWeightsTest : public testing::Test {
 protected:
  struct Node : transport::PullFramePort {
    absl::Status SendPull(NodeRank to, const v1::Pull& frame) override {
      test->process_.Post([test = test, from = rank, to, frame] {
        Node& node = *test->nodes_[to.value()];
        if (node.pulls != nullptr) node.pulls->OnFrame(NodeRank(from), frame);
      });
      return absl::OkStatus();
    }
    GatheredWeightsTest* test;
    int rank;
    Recorder recorder;
    std::unique_ptr<device::SharedBuffer> segment;
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<transport::Pulls> pulls;
    std::unique_ptr<OwnedWeights> owned;
    std::unique_ptr<GatheredWeights> gathered;
  };

  GatheredWeightsTest()
      : layout_(*layout::Layout::Create(
            {{.name = "a", .shape = {20000}},
             {.name = "base", .shape = {9000}, .trainable = false},
             {.name = "b", .shape = {3000}}},
            {kNodes, 1}, 1, {.bucket_bytes = 40'000, .chunk_bytes = 8'192})),
        units_(layout_) {}

  void Make(uint64_t limit_bytes) {
    for (int n = 0; n < kNodes; ++n) {
      auto node = std::make_unique<Node>();
      node->test = this;
      node->rank = n;
      Parts parts;
      parts.layout = &layout_;
      parts.node = NodeRank(n);
      parts.kernels = &kernels::Reference();
      parts.pool = &pool_;
      parts.device = &device_;
      parts.plan = &plan_;
      node->owned = *OwnedWeights::Create(parts, &units_);
      node->segment = *device_.AllocateSparse(layout_.weights_bytes(), 1, "w");
      node->gathered = std::make_unique<GatheredWeights>(
          GatheredWeights::Parts{.owned = node->owned.get(),
                                 .segment = node->segment.get(),
                                 .pool = &pool_,
                                 .limit_bytes = limit_bytes,
                                 .observer = &node->recorder});
      node->transport = *network_.AddNode(NodeRank(n), &process_);
      node->pulls = std::make_unique<transport::Pulls>(
          transport::Pulls::Parts{.transport = node->transport.get(),
                                  .executor = &process_,
                                  .frames = node.get()});
      node->gathered->SetPulls(node->pulls.get());
      nodes_.push_back(std::move(node));
    }
    for (int n = 0; n < kNodes; ++n) Publish(n, 0);
  }
  ~GatheredWeightsTest() override {
    for (auto& node : nodes_) node->gathered->Stop();
    world_.RunUntilIdle();
  }

  static std::byte Value(int owner, int64_t version) {
    return std::byte(16 * (owner + 1) + version);
  }
  // New bits of the buckets; those of frozen ones stay.
  void Publish(int n, int64_t version) {
    Node& node = *nodes_[n];
    for (int u = 0; u < units_.size(); ++u) {
      if (units_.is_frozen(u) && version > 0) continue;
      const std::span<std::byte> raw = node.owned->Raw(u);
      std::fill(raw.begin(), raw.end(), Value(n, version));
    }
    node.gathered->OnAllPublished(WeightVersion(version));
  }
  // Other pulls over the same transport.
  void LinkAgain(int n) {
    Node& node = *nodes_[n];
    node.pulls = std::make_unique<transport::Pulls>(
        transport::Pulls::Parts{.transport = node.transport.get(),
                                .executor = &process_,
                                .frames = &node});
    node.gathered->SetPulls(node.pulls.get());
  }
  void Commit(int n) {
    bool is_idle = false;
    nodes_[n]->gathered->EndVersion();
    nodes_[n]->gathered->WhenIdle([&] { is_idle = true; });
    while (!is_idle) ASSERT_TRUE(world_.Step());
  }
  void Want(int n, int unit, uint64_t request = 1, int rank = 0) {
    nodes_[n]->gathered->OnWanted(LocalRank(rank), unit, request);
  }
  void Run() { world_.RunFor(absl::Seconds(10)); }
  // Whether the unit's bytes in the node's segment are those of the version.
  bool Shows(int n, int unit, int64_t version) {
    const auto bytes = nodes_[n]->segment->bytes();
    for (int owner = 0; owner < kNodes; ++owner) {
      const layout::ByteRange& part = units_.unit(unit).parts[owner];
      for (uint64_t i = part.begin; i < part.end; ++i) {
        if (bytes[i] != Value(owner, version)) return false;
      }
    }
    return true;
  }
  // That the kernel says the segment takes.
  uint64_t TrueBytes(int n) {
    struct stat info;
    const auto fd = nodes_[n]->segment->Export(base::Access::kReadOnly);
    EXPECT_EQ(fstat(fd->get(), &info), 0);
    return info.st_blocks * 512;
  }
  GatheredWeights::Counts counts(int n) {
    return nodes_[n]->gathered->counts();
  }
  Recorder& recorder(int n) { return nodes_[n]->recorder; }

  base::SimExecutor world_{1};
  base::SimProcess process_{&world_, "all"};
  base::SimComputePool pool_{&process_, 1, 2};
  device::HostDevice device_{{}, &process_};
  transport::LinkModel links_{&world_, 1, transport::LinkFaults()};
  transport::InprocNetwork network_{&links_};
  const layout::Layout layout_;
  const layout::GatherUnits units_;
  layout::ExchangePlan plan_{
      *layout::ParsePolicy("exact secondary_partition=none"), layout_};
  std::vector<std::unique_ptr<Node>> nodes_;
};

TEST_F(GatheredWeightsTest, BytesAreThoseOfTheFormula) {
  Make(0);
  uint64_t frozen = 0;
  uint64_t model = 0;
  for (int u = 0; u < units_.size(); ++u) {
    for (int n = 0; n < kNodes; ++n) {
      Want(n, u);
      Want(n, u, 1, 1);  // another rank of the node: nothing more moves
      (units_.is_frozen(u) ? frozen : model) += units_.unit(u).payload(n);
    }
  }
  Run();
  EXPECT_EQ(model, plan_.Model(layout_).weights);
  EXPECT_EQ(frozen, 9000u * 4);
  uint64_t pulled = 0;
  uint64_t served = 0;
  for (int n = 0; n < kNodes; ++n) {
    EXPECT_EQ(recorder(n).held.size(), 2u * units_.size());
    for (int u = 0; u < units_.size(); ++u) EXPECT_TRUE(Shows(n, u, 0));
    EXPECT_EQ(counts(n).gathers, units_.size());
    pulled += counts(n).payload_pulled;
    served += counts(n).payload_served;
    EXPECT_GE(nodes_[n]->gathered->wire().wire_sent, counts(n).payload_served);
  }
  EXPECT_EQ(pulled, (kNodes - 1) * (model + frozen));
  EXPECT_EQ(served, pulled);
}

TEST_F(GatheredWeightsTest, PagesGoBackWithTheLastWorker) {
  Make(0);
  EXPECT_EQ(TrueBytes(0), 0u);
  for (int u = 0; u < units_.size(); ++u) Want(0, u);
  Want(0, 0, 1, 1);
  Run();
  EXPECT_EQ(TrueBytes(0), counts(0).resident_bytes);
  EXPECT_GE(TrueBytes(0), layout_.weights_bytes());
  for (int u = 0; u < units_.size(); ++u) Want(0, u, 2);
  Run();
  EXPECT_TRUE(Shows(0, 0, 0)) << "the other rank holds it";
  EXPECT_EQ(TrueBytes(0), counts(0).resident_bytes);
  EXPECT_LE(TrueBytes(0), units_.unit(0).bytes.size() + 2 * 4096);
  Want(0, 0, 2, 1);
  EXPECT_EQ(TrueBytes(0), 0u);
  EXPECT_EQ(counts(0).resident_bytes, 0u);
}

TEST_F(GatheredWeightsTest, BeyondTheBoundIsRefusedAtOnce) {
  Make(45'056);  // the first bucket and a little
  Want(0, 0);
  Want(0, 1);
  ASSERT_THAT(recorder(0).refusals, testing::SizeIs(1));
  EXPECT_THAT(recorder(0).refusals[0],
              base::StatusIs(absl::StatusCode::kResourceExhausted,
                             "of the 45056 that"));
  EXPECT_THAT(std::string(recorder(0).refusals[0].message()),
              HasSubstr("bucket 1 of version 0 needs"));
  Want(0, 1, 2);  // as a worker that was refused does
  Want(0, 0, 2);
  Want(0, 1, 3);
  Run();
  EXPECT_THAT(recorder(0).held, ElementsAre(Recorder::Held{0, 1, 3, 0}));
  EXPECT_LE(TrueBytes(0), 45'056u);
}

// A request that waits for pages which tasks of a gather that was given up
// still write to: it gets them when they end.
TEST_F(GatheredWeightsTest, GivenUpTasksLeaveTheirPagesToWhoWaits) {  // I23
  Make(45'056);  // one of the first two units
  Want(0, 0);
  Want(0, 0, 2);
  Want(0, 1, 1, 1);
  EXPECT_THAT(recorder(0).refusals, IsEmpty());
  EXPECT_EQ(counts(0).num_gathering, 0);
  Run();
  EXPECT_THAT(recorder(0).held, ElementsAre(Recorder::Held{1, 1, 1, 0}));
  EXPECT_TRUE(Shows(0, 1, 0));
}

// But if the unit that was given up is wanted again meanwhile, its pages stay:
// the bound refuses at once.
TEST_F(GatheredWeightsTest, WantedAgainGivenUpPagesAreWaitedForNoMore) {
  Make(45'056);
  Want(0, 0);
  Want(0, 0, 2);
  Want(0, 1, 1, 1);
  Want(0, 0, 3);
  EXPECT_THAT(recorder(0).refusals,  // I23
              ElementsAre(base::StatusIs(absl::StatusCode::kResourceExhausted,
                                         "bucket 1 of version 0 needs")));
  Run();
  EXPECT_THAT(recorder(0).held, ElementsAre(Recorder::Held{0, 0, 3, 0}));
  Want(0, 0, 4);
  Run();
  EXPECT_EQ(TrueBytes(0), 0u) << "the refused one asks again if it likes";
}

// Nor does it wait for those tasks once another unit's pages have gone back.
TEST_F(GatheredWeightsTest, WhoWaitsTakesAnyPages) {  // I23
  const int frozen = units_.size() - 1;
  Make(45'056 + 36'864);
  Want(0, 0);
  Want(0, frozen);
  Run();
  recorder(0).held.clear();
  Commit(0);
  Publish(0, 1);  // the first unit is gathered again
  ASSERT_EQ(counts(0).num_gathering, 1);
  Want(0, 0, 2);
  Want(0, 1, 1, 1);
  EXPECT_EQ(counts(0).num_gathering, 0);
  Want(0, frozen, 2);
  EXPECT_EQ(counts(0).num_gathering, 1) << "of the second unit";
  for (int n = 1; n < kNodes; ++n) {
    Commit(n);
    Publish(n, 1);
  }
  Run();
  EXPECT_THAT(recorder(0).held, ElementsAre(Recorder::Held{1, 1, 1, 1}));
  EXPECT_THAT(recorder(0).refusals, IsEmpty());
}

// I1: whoever wants a unit has it of each version in turn, and of none between
// a commit and its bytes. Node 2 is late: the others wait for its part.
TEST_F(GatheredWeightsTest, EachVersionReplacesTheLast) {
  Make(0);
  Want(0, 0);
  Run();
  recorder(0).held.clear();
  Commit(0);
  EXPECT_THAT(recorder(0).lost, ElementsAre(std::pair(0, 0)));
  Commit(1);
  Publish(0, 1);
  Publish(1, 1);
  Run();
  EXPECT_THAT(recorder(0).held, IsEmpty());
  EXPECT_THAT(nodes_[0]->gathered->WaitingFor(),
              HasSubstr("part of node 2 of bucket 0 of version 1"));
  EXPECT_EQ(counts(2).waits, 1u);
  Commit(2);
  Publish(2, 1);
  Run();
  EXPECT_THAT(recorder(0).held, ElementsAre(Recorder::Held{0, 0, 1, 1}));
  EXPECT_TRUE(Shows(0, 0, 1));
}

// Node 1 has the commit already: node 0 gets no part of the old version, and
// waits for its own commit.
TEST_F(GatheredWeightsTest, AnOwnerThatIsFurtherRefuses) {
  Make(0);
  Commit(1);
  Want(0, 0);
  Run();
  EXPECT_THAT(recorder(0).held, IsEmpty());
  EXPECT_THAT(recorder(0).failures, IsEmpty());
  Publish(1, 1);
  Commit(0);
  Commit(2);
  Publish(0, 1);
  Publish(2, 1);
  Run();
  EXPECT_THAT(recorder(0).held, ElementsAre(Recorder::Held{0, 0, 1, 1}));
  EXPECT_TRUE(Shows(0, 0, 1));
}

// An abort begins another generation, of the same weights, and no two nodes
// hear of it at once: what is asked for meanwhile is served (I23).
TEST_F(GatheredWeightsTest, AbortsRefuseNoGather) {
  Make(0);
  nodes_[1]->gathered->SetGeneration(Generation(2));
  Want(0, 0);  // the other one is further
  Want(1, 1);  // or behind
  Run();
  EXPECT_THAT(recorder(0).held, ElementsAre(Recorder::Held{0, 0, 1, 0}));
  EXPECT_THAT(recorder(1).held, ElementsAre(Recorder::Held{0, 1, 1, 0}));
}

TEST_F(GatheredWeightsTest, FrozenUnitsStayOverVersions) {
  Make(0);
  const int frozen = units_.size() - 1;
  Want(0, frozen);
  Run();
  for (int n = 0; n < kNodes; ++n) Commit(n);
  for (int n = 0; n < kNodes; ++n) Publish(n, 1);
  EXPECT_THAT(recorder(0).lost, IsEmpty());
  Want(1, frozen);
  Run();
  EXPECT_TRUE(Shows(0, frozen, 0));
  EXPECT_TRUE(Shows(1, frozen, 0));
}

// At any instant of a gather.
TEST_F(GatheredWeightsTest, GivingBackOnTheWayLeavesNothing) {
  Make(0);
  for (int events = 0; events < 40; ++events) {
    const uint64_t request = 2 * events + 1;
    Want(0, 0, request);
    for (int i = 0; i < events; ++i) world_.Step();
    Want(0, 0, request + 1);
    Run();
    EXPECT_EQ(TrueBytes(0), 0u) << events;
    EXPECT_EQ(counts(0).num_held + counts(0).num_gathering, 0) << events;
  }
  Want(0, 0, 1001);
  Run();
  EXPECT_TRUE(Shows(0, 0, 0));
}

// Links that are lost at any instant of gathers: what was asked for is asked
// for again, what is held stays, and what is given back meanwhile goes.
TEST_F(GatheredWeightsTest, GathersGoOnWithTheNextLinks) {  // I1, I20
  Make(0);
  Want(0, 0);
  Run();
  recorder(0).held.clear();
  uint64_t request = 1;
  for (int events = 0; events < 40; ++events, request += 2) {
    Want(0, 1, request);
    Want(1, 1, request);
    for (int i = 0; i < events; ++i) world_.Step();
    for (int n = 0; n < kNodes; ++n) nodes_[n]->gathered->Suspend();
    if (events % 3 == 0) Want(1, 1, request + 1);
    Run();
    for (int n = 0; n < kNodes; ++n) LinkAgain(n);
    EXPECT_TRUE(Shows(0, 0, 0)) << events;
    for (int n = 0; n < kNodes; ++n) {
      nodes_[n]->gathered->Resume(WeightVersion(0), /*is_published=*/true);
    }
    Run();
    EXPECT_TRUE(Shows(0, 1, 0)) << events;
    EXPECT_EQ(recorder(0).held.back(), (Recorder::Held{0, 1, request, 0}));
    EXPECT_EQ(counts(0).num_held, 2) << events;
    EXPECT_EQ(counts(1).num_held, events % 3 == 0 ? 0 : 1) << events;
    Want(0, 1, request + 1);
    Want(1, 1, request + 1);
    Run();
    EXPECT_EQ(TrueBytes(1), 0u) << events;
  }
  for (int n = 0; n < kNodes; ++n) {
    EXPECT_THAT(recorder(n).failures, IsEmpty());
  }
}

// A commit that all carry out when they have met again: of what it replaces
// nothing is held; what was gathered of it already is.
TEST_F(GatheredWeightsTest, ResumedWithACommitOldVersionsAreNotHeld) {  // I1
  Make(0);
  Want(0, 0);
  Want(0, 1);
  Want(0, units_.size() - 1);
  Run();
  Commit(0);
  for (int n = 0; n < kNodes; ++n) {
    const std::span<std::byte> raw = nodes_[n]->owned->Raw(0);
    std::fill(raw.begin(), raw.end(), Value(n, 1));
    if (n > 0) Commit(n);
    nodes_[n]->gathered->OnPublished(BucketId(0), WeightVersion(1));
  }
  Run();
  EXPECT_TRUE(Shows(0, 0, 1));
  recorder(0).lost.clear();
  recorder(0).held.clear();
  for (int n = 0; n < kNodes; ++n) {
    nodes_[n]->gathered->Suspend();
    LinkAgain(n);
    nodes_[n]->gathered->Resume(WeightVersion(1), /*is_published=*/false);
  }
  Run();
  EXPECT_THAT(recorder(0).held, IsEmpty()) << "bucket 1 is not published";
  for (int n = 0; n < kNodes; ++n) Publish(n, 1);
  Run();
  EXPECT_THAT(recorder(0).lost, IsEmpty()) << "bucket 0 stays held";
  EXPECT_THAT(recorder(0).held, ElementsAre(Recorder::Held{0, 1, 1, 1}));
  // One that only this node has not heard of.
  for (int n = 0; n < kNodes; ++n) {
    nodes_[n]->gathered->Suspend();
    LinkAgain(n);
    nodes_[n]->gathered->Resume(WeightVersion(2), /*is_published=*/false);
  }
  EXPECT_THAT(recorder(0).lost, ElementsAre(std::pair(0, 0), std::pair(0, 1)));
  EXPECT_EQ(counts(0).num_held, 1) << "the frozen unit";
}

// The next daemon: a unit that lies in the segment is held at once, without a
// byte moved; pages that nobody holds go back.
TEST_F(GatheredWeightsTest, ANewLifeTakesWhatLiesThere) {  // I13, I20
  Make(45'056);
  Want(0, 0);
  Run();
  nodes_[0]->gathered->Stop();
  GatheredWeights next({.owned = nodes_[0]->owned.get(),
                        .segment = nodes_[0]->segment.get(),
                        .pool = &pool_,
                        .limit_bytes = 45'056,
                        .observer = &recorder(0)});
  recorder(0).held.clear();
  const uint64_t pulled = nodes_[0]->pulls->counters().asked;
  EXPECT_TRUE(next.Adopt(LocalRank(0), 0, 3, WeightVersion(0)));
  EXPECT_TRUE(next.Adopt(LocalRank(1), 0, 1, WeightVersion(0)));
  EXPECT_FALSE(next.Adopt(LocalRank(0), 1, 1, WeightVersion(0)))
      << "more than there may be";
  const layout::ByteRange& other = units_.unit(1).bytes;
  ASSERT_THAT(nodes_[0]->segment->Reserve(other.begin, other.size()),
              base::IsOk());
  next.DiscardRest();
  EXPECT_EQ(TrueBytes(0), next.counts().resident_bytes);
  next.SetPulls(nodes_[0]->pulls.get());
  next.Resume(WeightVersion(0), /*is_published=*/true);
  Run();
  EXPECT_TRUE(Shows(0, 0, 0));
  EXPECT_THAT(recorder(0).held, ElementsAre(Recorder::Held{0, 0, 3, 0},
                                            Recorder::Held{1, 0, 1, 0}));
  EXPECT_EQ(nodes_[0]->pulls->counters().asked, pulled);
  next.OnWanted(LocalRank(0), 0, 4);
  next.OnWanted(LocalRank(1), 0, 2);
  EXPECT_EQ(TrueBytes(0), 0u);
  next.Stop();
}

// I23: a part that cannot be had ends the job, or its links, once, with the
// reason.
TEST_F(GatheredWeightsTest, ADeadOwnerIsAnError) {
  Make(0);
  Commit(0);
  Publish(0, 1);
  Want(0, 0);
  Want(0, 1);
  Run();
  nodes_[1]->gathered->SetPulls(nullptr);
  nodes_[1]->pulls.reset();
  nodes_[1]->transport.reset();
  Run();
  ASSERT_THAT(recorder(0).failures, testing::SizeIs(1));
  EXPECT_THAT(recorder(0).failures[0],
              base::StatusIs(absl::StatusCode::kUnavailable, "node 1 is gone"));
}

// I27: a key says nothing that this node would believe.
TEST_F(GatheredWeightsTest, HostileKeysAreRefused) {
  Make(0);
  std::vector<std::byte> into(8);
  for (const auto& [unit, owner] :
       {std::pair(-1, 1), {units_.size(), 1}, {0, 0}, {1 << 30, 1}}) {
    absl::Status status;
    ASSERT_THAT(nodes_[0]->pulls->Pull(
                    NodeRank(1),
                    {.bucket = BucketId(unit),
                     .owner = NodeRank(owner),
                     .kind = kGatherPull},
                    into, [&](const absl::Status& s) { status = s; }),
                base::IsOk());
    Run();
    EXPECT_THAT(status, base::StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace ballast::collective
