// What tests of deltas stand on: a training on whole tensors, the rig beside
// it, and a transport that meddles.
#ifndef SERVER_COLLECTIVE_DELTA_TESTING_H_
#define SERVER_COLLECTIVE_DELTA_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "kernels/reference/reference.h"
#include "kernels/stochastic.h"
#include "server/base/random.h"
#include "server/collective/collective.h"
#include "server/collective/collective_rig.h"
#include "server/collective/published_chunks.h"
#include "server/layout/policy.h"
#include "server/transport/transport.h"

namespace ballast::collective {

// Presets, and every tensor as deltas, small ones too.
inline const char* const kDeltaPolicies[] = {
    "delta4",
    "delta2",
    "weights.mode=delta weights.codec=int4 weights.block=64",
    "weights.mode=delta weights.codec=int8 weights.block=256 "
    "override:cube=none override:seven=int4",
    "weights.mode=delta weights.codec=int2 weights.block=32",
};

// Two small tensors, as differences that heal.
inline RigOptions Small(int nodes) {
  return {.nodes = nodes,
          .tensors = {{"small", {100}, kernels::DType::kBFloat16},
                      {"w", {9 * 2048}, kernels::DType::kBFloat16}},
          .exchange = "weights.mode=delta weights.codec=int4",
          .heals = true};
}

// A training: masters of whole tensors that drift, and what is published of
// them, by FORMAT.md 9.
class Model {
 public:
  Model(const Rig& rig, const std::string& policy, int nodes)
      : layout_(rig.layout()),
        policy_(*layout::ParsePolicy(policy)),
        nodes_(nodes) {
    for (size_t i = 0; i < layout_.tensors().size(); ++i) {
      const int64_t count = layout_.places()[i].num_elements;
      masters_.push_back(MasterValues(count, static_cast<int>(i)));
      published_.emplace_back(count * SizeOf(layout_.tensors()[i].dtype));
      Cast(i, masters_[i]);
      Widen(i, &masters_[i]);  // as after InitializeFromWeights
    }
  }

  void Drift(int64_t step) {
    for (size_t i = 0; i < masters_.size(); ++i) {
      for (size_t e = 0; e < masters_[i].size(); ++e) {
        const uint64_t bits = kernels::Mix64(step * 1'000'003 + i * 7919 + e);
        masters_[i][e] += 1e-3f * (static_cast<float>(bits % 2001) / 1e3f - 1);
      }
    }
  }

  // In fp32, whole tensors in one piece.
  void Publish(int64_t step) {
    const kernels::Kernels& k = kernels::Reference();
    for (size_t i = 0; i < masters_.size(); ++i) {
      const layout::TensorSpec& tensor = layout_.tensors()[i];
      if (!tensor.trainable) continue;
      const auto count = static_cast<int64_t>(masters_[i].size());
      const layout::CodecChoice choice =
          layout::CodecsOf(policy_, tensor.name, count).weights;
      if (!choice.quantizes()) {
        Cast(i, masters_[i]);
        continue;
      }
      std::vector<float> reference(count);
      Widen(i, &reference);
      for (float& value : reference) value = std::isfinite(value) ? value : 0;
      std::vector<float> delta(count);
      for (int64_t e = 0; e < count; ++e) {
        delta[e] = masters_[i][e] - reference[e];
      }
      const uint64_t key =
          kernels::StochasticKey(policy_.seed, kRigJobKey, i, step, nodes_);
      std::vector<uint8_t> bytes(kernels::EncodedBytes(choice.block, count));
      k.encode(choice.block, key, 0, count, delta.data(), bytes.data());
      k.decode(choice.block, count, bytes.data(), delta.data());
      for (int64_t e = 0; e < count; ++e) reference[e] += delta[e];
      Cast(i, reference);
    }
  }

  // Into the rig: a segment, its gaps as they are; the owners' masters.
  void ToWeights(std::vector<std::byte>* weights) const {
    for (size_t i = 0; i < published_.size(); ++i) {
      std::ranges::copy(published_[i],
                        weights->begin() + layout_.places()[i].weight_offset);
    }
  }
  void ToMasters(Rig* rig) const {
    for (const layout::Bucket& bucket : layout_.buckets()) {
      for (const layout::Shard& shard : bucket.shards) {
        for (int g = 0; g < layout_.topology().num_groups(); ++g) {
          const NodeRank node = layout_.topology().NodeAt(g, shard.owner);
          std::vector<float>& own = rig->master(node.value());
          for (const layout::Piece& piece : shard.pieces) {
            std::copy_n(masters_[piece.tensor.value()].begin() + piece.begin,
                        piece.size(), own.begin() + piece.state_offset);
          }
        }
      }
    }
  }

  const std::vector<float>& master(size_t tensor) const {
    return masters_[tensor];
  }
  void SetMaster(size_t tensor, int64_t element, float value) {
    masters_[tensor][element] = value;
  }
  std::vector<float> published(size_t tensor) const {
    std::vector<float> values(masters_[tensor].size());
    Widen(tensor, &values);
    return values;
  }

 private:
  void Cast(size_t i, const std::vector<float>& values) {
    kernels::Reference().cast(values.data(), layout_.tensors()[i].dtype,
                              values.size(), published_[i].data());
  }
  void Widen(size_t i, std::vector<float>* values) const {
    kernels::Reference().widen(published_[i].data(), layout_.tensors()[i].dtype,
                               values->size(), values->data());
  }

  const layout::Layout& layout_;
  const layout::ExchangePolicy policy_;
  const int nodes_;
  std::vector<std::vector<float>> masters_;
  std::vector<std::vector<std::byte>> published_;
};

// A rig whose nodes all show the model's initial weights.
class Job {
 public:
  explicit Job(const RigOptions& options)
      : nodes_(options.nodes),
        rig_(options),
        model_(rig_, options.exchange, options.nodes) {
    for (int node = 0; node < nodes_; ++node) {
      model_.ToWeights(&rig_.weights(node));
    }
    rig_.CreateAll(Generation(1));
  }

  Rig& rig() { return rig_; }
  Model& model() { return model_; }

  int nodes() const { return nodes_; }

  void Publish(int64_t step) {
    StartPublish(step);
    EndPublish(step);
  }
  void StartPublish(int64_t step) {
    model_.Drift(step);
    model_.ToMasters(&rig_);
    rig_.StartPublishAll(Step(step));
  }
  void EndPublish(int64_t step) {
    rig_.Settle();
    model_.Publish(step);
  }

  std::vector<std::byte> Expected() {
    std::vector<std::byte> weights = gaps_;
    model_.ToWeights(&weights);
    return weights;
  }
  void ExpectSame(const std::string& what) {
    for (int node = 0; node < nodes_; ++node) {
      EXPECT_EQ(rig_.collective(node)->published().faults, ChunkFaultCounts());
    }
    ExpectSameBits(what);
  }
  // Whatever was found on the way.
  void ExpectSameBits(const std::string& what) {
    const std::vector<std::byte> expected = Expected();
    for (int node = 0; node < nodes_; ++node) {
      for (const absl::Status& failure : rig_.observer(node).failures) {
        ADD_FAILURE() << what << ": " << failure;
      }
      EXPECT_TRUE(rig_.weights(node) == expected) << what << " node " << node;
      EXPECT_EQ(rig_.collective(node)->published().digest,
                rig_.collective(0)->published().digest);
    }
  }
  // All failures, and by which node.
  std::vector<std::pair<int, absl::Status>> Failures() {
    std::vector<std::pair<int, absl::Status>> failures;
    for (int node = 0; node < nodes_; ++node) {
      for (const absl::Status& failure : rig_.observer(node).failures) {
        failures.emplace_back(node, failure);
      }
    }
    return failures;
  }

 private:
  const int nodes_;
  Rig rig_;
  std::vector<std::byte> gaps_ = rig_.weights(0);  // poison
  Model model_;
};

// Calls a function before an exchange of one phase is posted on one node.
class MeddlingTransport final : public transport::Transport {
 public:
  using Meddle = std::function<void(const transport::ExchangeSpec& spec)>;

  MeddlingTransport(transport::Transport* inner, uint32_t phase, Meddle meddle)
      : inner_(inner), phase_(phase), meddle_(std::move(meddle)) {}

  const transport::Capabilities& capabilities() const override {
    return inner_->capabilities();
  }
  NodeRank self() const override { return inner_->self(); }
  absl::StatusOr<std::unique_ptr<transport::Exchange>> Prepare(
      const transport::ExchangeSpec& spec,
      transport::ExchangeObserver* observer) override {
    if (PhaseOf(spec.phase) != phase_) return inner_->Prepare(spec, observer);
    auto exchange = std::make_unique<Exchange>(this, spec, observer);
    auto inner = inner_->Prepare(spec, exchange.get());
    if (!inner.ok()) return inner.status();
    exchange->inner = *std::move(inner);
    return exchange;
  }

 private:
  struct Exchange final : transport::Exchange, transport::ExchangeObserver {
    Exchange(MeddlingTransport* the_transport,
             const transport::ExchangeSpec& the_spec,
             transport::ExchangeObserver* the_observer)
        : transport(the_transport), spec(the_spec), observer(the_observer) {}
    absl::Status Post(Step step) override {
      transport->meddle_(spec);
      return inner->Post(step);
    }
    void Cancel() override { inner->Cancel(); }
    bool is_posted() const override { return inner->is_posted(); }
    const transport::ByteCounters& counters() const override {
      return inner->counters();
    }
    void OnExchangeDone(transport::Exchange*, Step step,
                        const absl::Status& status) override {
      observer->OnExchangeDone(this, step, status);
    }

    MeddlingTransport* const transport;
    const transport::ExchangeSpec spec;
    transport::ExchangeObserver* const observer;
    std::unique_ptr<transport::Exchange> inner;
  };

  transport::Transport* const inner_;
  const uint32_t phase_;
  const Meddle meddle_;
};

inline RigOptions Meddled(int node, uint32_t phase,
                          MeddlingTransport::Meddle meddle) {
  RigOptions options{.nodes = 3,
                     .tensors = {{"small", {100}, kernels::DType::kBFloat16},
                                 {"w", {9 * 2048}, kernels::DType::kBFloat16}},
                     .exchange = "weights.mode=delta weights.codec=int4"};
  options.wrap_transport = [=](NodeRank rank, transport::Transport* inner)
      -> std::unique_ptr<transport::Transport> {
    if (rank != NodeRank(node)) return nullptr;
    return std::make_unique<MeddlingTransport>(inner, phase, meddle);
  };
  return options;
}

// Where element `element` of "w" lies, and whose it is.
inline size_t OffsetOf(const layout::Layout& layout, int64_t element) {
  return layout.places()[1].weight_offset + 2 * element;
}
inline int OwnerOf(const layout::Layout& layout, int64_t element) {
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      for (const layout::Piece& piece : shard.pieces) {
        if (piece.tensor == TensorId(1) && piece.begin <= element &&
            element < piece.end) {
          return shard.owner.value();
        }
      }
    }
  }
  return -1;
}

inline std::vector<ChunkId> AllChunks(const layout::Layout& layout) {
  std::vector<ChunkId> chunks;
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      for (size_t i = 0; i < shard.chunks.size(); ++i) {
        chunks.push_back({bucket.id, shard.owner, i});
      }
    }
  }
  return chunks;
}

// Some bit of some element of the chunk.
inline void Flip(Job* job, int node, const ChunkId& id, uint64_t seed) {
  base::SeededRandom random(seed + 99);
  const layout::Layout& layout = job->rig().layout();
  const layout::Chunk& chunk =
      layout.shard(id.bucket, id.owner).chunks[id.index];
  const layout::Piece& piece = chunk.pieces[random.Below(chunk.pieces.size())];
  const size_t size = SizeOf(layout.tensor(piece.tensor).dtype);
  const size_t offset = layout.place(piece.tensor).weight_offset +
                        piece.begin * size + random.Below(piece.size() * size);
  job->rig().weights(node)[offset] ^= std::byte(1 << random.Below(8));
}

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_DELTA_TESTING_H_
