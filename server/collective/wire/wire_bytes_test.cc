// What a step puts on the wire, counted where the transport gets it, against
// bytes worked out here from the layout and FORMAT.md: of GPT-2's tensors, by
// every preset, with bf16 and fp32 weights, on 1 to 6 nodes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/canonical_tree.h"
#include "kernels/dtype.h"
#include "kernels/reference/reference.h"
#include "server/base/sim_compute_pool.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/collective/collective.h"
#include "server/collective/collective_rig.h"
#include "server/collective/gathered_weights.h"
#include "server/collective/owned_weights.h"
#include "server/collective/parts.h"
#include "server/collective/published_chunks.h"
#include "server/device/device.h"
#include "server/device/host/host_device.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/gather_units.h"
#include "server/layout/layout.h"
#include "server/layout/policy.h"
#include "server/optimizer/residuals.h"
#include "server/transport/inproc/inproc_transport.h"
#include "server/transport/inproc/link_model.h"
#include "server/transport/transport.h"
#include "server/transport/ucx/message.h"

namespace ballast::collective {
namespace {

using layout::Layout;

// The tensors of openai/gpt-2's source, the output head tied to wte.
std::vector<layout::TensorSpec> Gpt2(int64_t layers, int64_t d,
                                     int64_t vocabulary, int64_t positions,
                                     kernels::DType dtype) {
  std::vector<layout::TensorSpec> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    tensors.push_back({name, std::move(shape), dtype});
  };
  add("wpe", {positions, d});
  add("wte", {vocabulary, d});
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = absl::StrCat("h", i, ".");
    for (const char* const norm : {"ln_1", "ln_2"}) {
      add(absl::StrCat(layer, norm, ".g"), {d});
      add(absl::StrCat(layer, norm, ".b"), {d});
    }
    for (const auto& [name, in, out] : {std::tuple("attn.c_attn", d, 3 * d),
                                        {"attn.c_proj", d, d},
                                        {"mlp.c_fc", d, 4 * d},
                                        {"mlp.c_proj", 4 * d, d}}) {
      add(absl::StrCat(layer, name, ".w"), {in, out});
      add(absl::StrCat(layer, name, ".b"), {out});
    }
  }
  add("ln_f.g", {d});
  add("ln_f.b", {d});
  return tensors;
}

std::vector<layout::TensorSpec> Small(kernels::DType dtype) {
  return Gpt2(12, 768, 50257, 1024, dtype);
}

struct Case {
  int nodes;
  std::string policy;
  kernels::DType dtype = kernels::DType::kBFloat16;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (int nodes = 2; nodes <= 5; ++nodes) {
    for (const char* const policy : {"exact", "zeropp", "delta4", "delta2"}) {
      cases.push_back({nodes, policy});
    }
  }
  for (const int nodes : {2, 4, 6}) {
    for (const char* const policy : {"exact", "zeropp", "delta4"}) {
      cases.push_back({nodes, absl::StrCat(policy, " partition_nodes=2")});
    }
  }
  for (const int nodes : {2, 3, 4, 5}) {
    for (const char* const policy : {"exact", "zeropp"}) {
      cases.push_back(
          {nodes, absl::StrCat(policy, " secondary_partition=none")});
    }
  }
  const size_t num_bfloat16 = cases.size();
  for (size_t i = 0; i < num_bfloat16; ++i) {
    cases.push_back(cases[i]);
    cases.back().dtype = kernels::DType::kFloat32;
  }
  return cases;
}

std::string NameOf(const Case& one) {
  return absl::StrCat(one.nodes, " nodes, ", one.policy, ", ",
                      std::string(kernels::Name(one.dtype)));
}

bool Gathers(const Case& one) {
  return absl::StrContains(one.policy, "secondary_partition=none");
}

struct Traffic {
  uint64_t bytes = 0;  // of parts: codes, scales, checksums, alignment
  uint64_t num_parts = 0;
  uint64_t headers = 0;

  // transport/ucx: for a part that is sent an offer and a header per chunk;
  // for one that is received a credit and the word that it is there.
  void AddSent(uint64_t size) {
    constexpr uint64_t kChunkBytes = 256 << 10;
    bytes += size;
    ++num_parts;
    headers +=
        transport::kHeaderBytes *
        (1 + std::max<uint64_t>(1, (size + kChunkBytes - 1) / kChunkBytes));
  }
  void AddReceived() { headers += 2 * transport::kHeaderBytes; }
};

// Counts what is prepared of a step's phases, and hands on. With `extra` each
// part that is sent is so many bytes longer when it comes here.
class CountingTransport final : public transport::Transport {
 public:
  CountingTransport(transport::Transport* inner, Traffic* traffic, size_t extra)
      : inner_(inner), traffic_(traffic), extra_(extra) {}

  const transport::Capabilities& capabilities() const override {
    return inner_->capabilities();
  }
  NodeRank self() const override { return inner_->self(); }
  absl::StatusOr<std::unique_ptr<transport::Exchange>> Prepare(
      const transport::ExchangeSpec& spec,
      transport::ExchangeObserver* observer) override {
    const uint32_t phase = PhaseOf(spec.phase);
    if (phase == kReducePhase || phase == kPublishPhase ||
        phase == kGroupsPhase) {
      for (const transport::SendPart& part : spec.sends) {
        traffic_->AddSent(part.bytes.size() + extra_);
      }
      for (size_t i = 0; i < spec.receives.size(); ++i) traffic_->AddReceived();
    }
    return inner_->Prepare(spec, observer);
  }

 private:
  transport::Transport* const inner_;
  Traffic* const traffic_;
  const size_t extra_;
};

uint64_t PadTo16(uint64_t bytes) { return (bytes + 15) / 16 * 16; }

// By hand, from FORMAT.md 1: codes, then scales, each run at a multiple of 16
// bytes; a tensor without a codec as it is; and what each chunk has in front.
uint64_t CodedBytes(const Layout& layout, const layout::ExchangePlan& plan,
                    const layout::Shard& shard, layout::Path path,
                    uint64_t chunk_header) {
  uint64_t bytes = 0;
  for (const layout::Chunk& chunk : shard.chunks) {
    bytes += chunk_header;
    for (const layout::Piece& piece : chunk.pieces) {
      const layout::CodecChoice& choice = plan.codecs(piece.tensor).on(path);
      const uint64_t count = piece.size();
      if (!choice.quantizes()) {
        bytes +=
            PadTo16(count * (path == layout::Path::kGradients
                                 ? sizeof(float)
                                 : SizeOf(layout.tensor(piece.tensor).dtype)));
        continue;
      }
      const uint64_t block = choice.block.block;
      bytes += PadTo16((count * choice.block.bits + 7) / 8) +
               PadTo16(sizeof(float) * ((count + block - 1) / block));
    }
  }
  return bytes;
}

// A shard's weights as they lie in the segment.
uint64_t RangeBytes(const Layout& layout, const layout::Shard& shard) {
  if (shard.pieces.empty()) return 0;
  const auto offset = [&](const layout::Piece& piece, int64_t element) {
    return layout.place(piece.tensor).weight_offset +
           element * SizeOf(layout.tensor(piece.tensor).dtype);
  };
  return offset(shard.pieces.back(), shard.pieces.back().end) -
         offset(shard.pieces.front(), shard.pieces.front().begin);
}

// What the node's parts take in a step; their weights, if gathered, once.
uint64_t BytesByHand(const Layout& layout, const layout::ExchangePlan& plan,
                     NodeRank node) {
  const layout::Topology& topology = layout.topology();
  const NodeRank self = topology.OwnerOf(node);
  const auto sums_of = [&](int first_rank, int count) {
    return kernels::MaximalSubtrees({first_rank, count}, topology.world_size())
        .size();
  };
  const auto gradients = [&](const layout::Shard& shard, uint64_t num_sums) {
    if (plan.quantizes_gradients()) {
      return CodedBytes(layout, plan, shard, layout::Path::kGradients, 0);
    }
    return num_sums * sizeof(float) * (shard.bucket_end - shard.bucket_begin);
  };
  const int workers = topology.local_world_size;
  const uint64_t own_sums = sums_of(node.value() * workers, workers);
  const uint64_t group_sums =
      sums_of(topology.GroupOf(node) * topology.num_owners() * workers,
              topology.num_owners() * workers);
  uint64_t bytes = 0;
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      if (shard.owner != self) {
        bytes += gradients(shard, own_sums);
        continue;
      }
      bytes += (topology.num_groups() - 1) * gradients(shard, group_sums);
      bytes += (topology.num_owners() - 1) *
               (plan.quantizes_weights()
                    ? CodedBytes(layout, plan, shard, layout::Path::kWeights,
                                 plan.codes_deltas() ? 16 : 0)
                    : RangeBytes(layout, shard));
    }
  }
  return bytes;
}

class NoGathers final : public GatherObserver {
 public:
  void OnHeld(LocalRank, int, uint64_t, WeightVersion) override {}
  void OnNotHeld(LocalRank, int, uint64_t) override {}
  void OnRefused(LocalRank, int, uint64_t, const absl::Status&) override {}
  void OnGatherFailed(const absl::Status&) override {}
};

// A job of GPT-2's size whose exchanges are all prepared, and none is run: its
// memory is addresses that nobody reads.
class PreparedJob {
 public:
  explicit PreparedJob(const Case& one, size_t extra = 0,
                       const layout::Options& sizes = {})
      : layout_(*Layout::Create(
            Small(one.dtype),
            {one.nodes, 1, layout::ParsePolicy(one.policy)->partition_nodes}, 1,
            sizes)),
        plan_(*layout::ParsePolicy(one.policy), layout_),
        units_(layout_) {
    const uint64_t elements = layout_.total_elements() + (1 << 20);
    memory_ = *device_.AllocatePrivate(elements * sizeof(float), "nothing");
    if (plan_.feeds_back()) {
      residuals_ =
          *optimizer::Residuals::Create(&device_, layout_, NodeRank(0));
    }
    for (int n = 0; n < one.nodes; ++n) {
      nodes_.push_back(std::make_unique<Node>());
      Node& node = *nodes_.back();
      node.inner = *network_.AddNode(NodeRank(n), &world_);
      node.counting = std::make_unique<CountingTransport>(node.inner.get(),
                                                          &node.traffic, extra);
      Prepare(NodeRank(n), Gathers(one), extra);
    }
  }
  ~PreparedJob() {
    for (auto& node : nodes_) node->collective.reset();
    for (auto& node : nodes_) node->gathered.reset();
    for (auto& node : nodes_) node->inner.reset();
  }

  const Layout& layout() const { return layout_; }
  const layout::ExchangePlan& plan() const { return plan_; }
  const Traffic& traffic(int node) const { return nodes_[node]->traffic; }

 private:
  struct Node {
    std::unique_ptr<transport::Transport> inner;
    std::unique_ptr<transport::Transport> counting;
    std::unique_ptr<PublishedChunks> published;
    std::unique_ptr<OwnedWeights> owned;
    std::unique_ptr<device::SharedBuffer> segment;
    std::unique_ptr<GatheredWeights> gathered;
    std::unique_ptr<Collective> collective;
    RecordingObserver observer;
    Traffic traffic;
  };

  void Prepare(NodeRank rank, bool gathers, size_t extra) {
    Node& node = *nodes_[rank.value()];
    const std::span<std::byte> bytes = memory_->bytes();
    const std::span<float> floats(reinterpret_cast<float*>(bytes.data()),
                                  bytes.size() / sizeof(float));
    node.published = std::make_unique<PublishedChunks>(&layout_);
    Parts parts = {.layout = &layout_,
                   .node = rank,
                   .kernels = &kernels::Reference(),
                   .pool = &pool_,
                   .device = &device_,
                   .transport = node.counting.get(),
                   .gradients = {bytes},
                   .weights = bytes,
                   .state_gradient = floats,
                   .plan = &plan_,
                   .master = floats,
                   .published = node.published.get(),
                   .residuals = residuals_.get(),
                   .observer = &node.observer};
    if (gathers) {
      node.owned = *OwnedWeights::Create(parts, &units_);
      node.segment =
          *device_.AllocateSparse(layout_.weights_bytes(), 1, "weights");
      node.gathered = std::make_unique<GatheredWeights>(
          GatheredWeights::Parts{.owned = node.owned.get(),
                                 .segment = node.segment.get(),
                                 .pool = &pool_,
                                 .observer = &no_gathers_});
      parts.owned = node.owned.get();
      parts.gathered = node.gathered.get();
      AddGathers(rank, extra);
    }
    auto collective = Collective::Create(parts, Generation(1));
    ASSERT_THAT(collective, base::IsOk());
    node.collective = *std::move(collective);
  }

  // Each unit by each node once: what this node serves to the others, and the
  // parts that it gets.
  void AddGathers(NodeRank rank, size_t extra) {
    Node& node = *nodes_[rank.value()];
    for (const layout::Bucket& bucket : layout_.buckets()) {
      if (node.owned->codes()) node.owned->SetCoded(bucket.id);
      const int unit = bucket.id.value();
      for (int peer = 0; peer < node.owned->num_nodes(); ++peer) {
        if (peer == node.owned->self()) continue;
        const size_t served = node.owned->Served(unit).size();
        if (served > 0) node.traffic.AddSent(served + extra);
        if (node.owned->PartBytes(unit, peer) > 0) node.traffic.AddReceived();
      }
    }
  }

  const Layout layout_;
  layout::ExchangePlan plan_;
  const layout::GatherUnits units_;
  base::SimExecutor world_{1};
  transport::LinkModel links_{&world_, 1, {}};
  transport::InprocNetwork network_{&links_};
  base::SimComputePool pool_{&world_, 1, 1};
  device::HostDevice device_{{}, &world_};
  NoGathers no_gathers_;
  std::unique_ptr<device::PrivateBuffer> memory_;
  // One for all: nothing is read.
  std::unique_ptr<optimizer::Residuals> residuals_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

struct Sums {
  uint64_t payload = 0;
  uint64_t sent = 0;  // headers too

  double overhead() const {
    return static_cast<double>(sent - payload) / static_cast<double>(payload);
  }
};

Sums SumsOf(const PreparedJob& job, const Case& one) {
  Sums sums;
  for (int node = 0; node < one.nodes; ++node) {
    sums.payload += job.plan().PerStep(job.layout(), NodeRank(node)).total();
    sums.sent += job.traffic(node).bytes + job.traffic(node).headers;
  }
  return sums;
}

TEST(WireBytesTest, OfGpt2TheyAreTheFormulaAndHalfAPercent) {  // I21
  EXPECT_EQ(Small(kernels::DType::kFloat32).size(), 148u);
  for (const Case& one : Cases()) {
    const PreparedJob job(one);
    EXPECT_EQ(job.layout().trainable_elements(), 124'439'808);
    for (int node = 0; node < one.nodes; ++node) {
      EXPECT_EQ(job.traffic(node).bytes,
                BytesByHand(job.layout(), job.plan(), NodeRank(node)))
          << NameOf(one) << ", node " << node;
    }
    const Sums sums = SumsOf(job, one);
    ASSERT_GT(sums.payload, 0u);
    EXPECT_LE(sums.overhead(), 0.005) << NameOf(one);
    EXPECT_GT(sums.overhead(), 0) << NameOf(one);
    RecordProperty(NameOf(one), absl::StrCat(sums.overhead()));
  }
}

// Negative control: with smaller buckets the same count is above the bound.
TEST(WireBytesTest, SmallerBucketsTakeMoreHeaders) {
  const Case one{5, "delta2"};
  const PreparedJob job(one, 0, {.bucket_bytes = 4 << 20});
  EXPECT_GT(SumsOf(job, one).overhead(), 0.005);
}

// Negative control: a byte more per slice.
TEST(WireBytesTest, AByteMorePerPartIsFound) {
  for (const Case& one : {Case{3, "exact"}, Case{3, "delta4"},
                          Case{4, "zeropp partition_nodes=2"},
                          Case{3, "zeropp secondary_partition=none"}}) {
    const PreparedJob job(one, /*extra=*/1);
    for (int node = 0; node < one.nodes; ++node) {
      const Traffic& traffic = job.traffic(node);
      EXPECT_EQ(traffic.bytes,
                BytesByHand(job.layout(), job.plan(), NodeRank(node)) +
                    traffic.num_parts)
          << NameOf(one);
      EXPECT_GT(traffic.num_parts, 0u);
    }
  }
}

// A step posts each exchange that was prepared once: of a small GPT-2 whose
// steps do run, with all codecs.
TEST(WireBytesTest, AStepSendsWhatIsPreparedAndNothingElse) {  // I21
  constexpr int kSteps = 2;
  for (const Case& one : Cases()) {
    if (Gathers(one)) continue;  // the rig's weights are resident
    std::vector<Traffic> traffic(one.nodes);
    Rig rig({.nodes = one.nodes,
             .bucket_bytes = 128 << 10,
             .chunk_bytes = 32 << 10,
             .batch_bytes = 16 << 10,
             .tensors = Gpt2(1, 64, 1003, 96, one.dtype),
             .exchange = one.policy,
             .wrap_transport = [&](NodeRank node, transport::Transport* inner) {
               return std::make_unique<CountingTransport>(
                   inner, &traffic[node.value()], 0);
             }});
    for (int node = 0; node < one.nodes; ++node) {
      std::ranges::fill(rig.weights(node), std::byte{0});
    }
    rig.CreateAll(Generation(1));
    for (int64_t step = 1; step <= kSteps; ++step) {
      rig.ReduceAll(Step(step));
      rig.StartPublishAll(Step(step));
      rig.Settle();
    }
    for (int node = 0; node < one.nodes; ++node) {
      const ByteCounts counts = rig.collective(node)->byte_counts();
      const uint64_t sent =
          traffic[node].bytes +
          transport::InprocNetwork::kHeaderBytes * traffic[node].num_parts;
      EXPECT_EQ(rig.links().sent_bytes(NodeRank(node)), kSteps * sent)
          << NameOf(one);
      EXPECT_EQ(counts.wire_sent, kSteps * sent) << NameOf(one);
      EXPECT_EQ(
          counts.payload_sent,
          kSteps * rig.plan().PerStep(rig.layout(), NodeRank(node)).total())
          << NameOf(one);
      EXPECT_EQ(traffic[node].bytes,
                BytesByHand(rig.layout(), rig.plan(), NodeRank(node)))
          << NameOf(one);
    }
  }
}

TEST(WireBytesTest, OneNodeSendsNothing) {
  for (const char* const policy : {"exact", "zeropp", "delta4", "delta2"}) {
    Rig rig({.nodes = 1,
             .workers = 2,
             .tensors = Gpt2(1, 64, 1003, 96, kernels::DType::kFloat32),
             .exchange = policy});
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(1));
    EXPECT_EQ(rig.plan().PerStep(rig.layout(), NodeRank(0)).total(), 0u);
    EXPECT_EQ(rig.collective(0)->byte_counts().wire_sent, 0u);
    EXPECT_EQ(rig.links().sent_bytes(NodeRank(0)), 0u);
  }
}

}  // namespace
}  // namespace ballast::collective
