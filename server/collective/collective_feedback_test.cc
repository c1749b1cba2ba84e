// Error feedback: what encoding takes from a node's gradients is in the next
// step's (kernels/FORMAT.md 10).
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "kernels/reference/reference.h"
#include "server/base/status_matchers.h"
#include "server/collective/codec.h"
#include "server/collective/codec_registry.h"
#include "server/collective/collective.h"
#include "server/collective/collective_rig.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/layout.h"
#include "server/layout/policy.h"
#include "server/optimizer/residuals.h"

namespace ballast::collective {
namespace {

using optimizer::Residuals;

constexpr char kPolicy[] =
    "gradients.codec=int4 gradients.hadamard=32 override:cube=none "
    "gradients.error_feedback=true";

// Whole tensors of every node, by FORMAT.md, without buckets or owners.
class Model {
 public:
  explicit Model(Rig* rig, MakeGradient gradient)
      : rig_(rig), gradient_(std::move(gradient)) {}

  // One step from the residuals that count; what it would leave over and the
  // means that it gives.
  void Compute() {
    const layout::Topology& topology = rig_->layout().topology();
    const kernels::Kernels& k = kernels::Reference();
    const size_t num_tensors = rig_->layout().tensors().size();
    left_.assign(topology.num_nodes,
                 std::vector<std::vector<float>>(num_tensors));
    before_.resize(topology.num_nodes,
                   std::vector<std::vector<float>>(num_tensors));
    means_.assign(num_tensors, {});
    for (const TensorId id : rig_->plan().metered(layout::Path::kGradients)) {
      const int t = id.value();
      const layout::TensorSpec& spec = rig_->layout().tensor(id);
      const int64_t count = rig_->layout().place(id).num_elements;
      const auto codec = MakeCodec(rig_->plan().codecs(id).gradients,
                                   kernels::DType::kFloat32, &k);
      std::vector<float>& mean = means_[t];
      for (int node = 0; node < topology.num_nodes; ++node) {
        std::vector<std::vector<std::byte>> gradients;
        std::vector<const void*> sources;
        for (int w = 0; w < topology.local_world_size; ++w) {
          const int rank = node * topology.local_world_size + w;
          gradients.push_back(gradient_(spec, count, t, rank));
          sources.push_back(gradients.back().data());
        }
        std::vector<float> y(count);
        k.tree_sum(spec.dtype, sources, count, y.data());
        std::vector<float>& before = before_[node][t];
        before.resize(count);
        for (int64_t i = 0; i < count; ++i) y[i] += before[i];
        std::vector<std::byte> bytes(codec->EncodedBytes(count));
        codec->Encode({.count = count}, y.data(), bytes.data());
        std::vector<float> sent(count);
        codec->Decode(count, bytes.data(), sent.data());
        mean.resize(count);
        for (int64_t i = 0; i < count; ++i) {
          left_[node][t].push_back(y[i] - sent[i]);
          mean[i] = node == 0 ? sent[i] : mean[i] + sent[i];
        }
      }
      for (float& x : mean) x /= static_cast<float>(topology.world_size());
    }
  }
  void Apply() { before_ = left_; }

  // Both versions on every node, and the means.
  void ExpectSame(int64_t applied) {
    const auto means = rig_->Means();
    for (const TensorId id : rig_->plan().metered(layout::Path::kGradients)) {
      EXPECT_EQ(means[id.value()], means_[id.value()])
          << rig_->layout().tensor(id).name;
    }
    for (size_t node = 0; node < before_.size(); ++node) {
      ExpectVersion(node, Residuals::VersionAt(applied), before_[node]);
      ExpectVersion(node, Residuals::VersionAt(applied + 1), left_[node]);
    }
  }

 private:
  void ExpectVersion(int node, int version,
                     const std::vector<std::vector<float>>& tensors) {
    Residuals& residuals = *rig_->residuals(node);
    for (const layout::Bucket& bucket : rig_->layout().buckets()) {
      for (const layout::Shard& shard : bucket.shards) {
        for (const layout::Piece& piece : shard.pieces) {
          const float* const is = residuals.version(version).data() +
                                  residuals.OffsetOf(bucket.id) +
                                  piece.bucket_offset;
          const std::vector<float>& tensor = tensors[piece.tensor.value()];
          for (int64_t i = 0; i < piece.size(); ++i) {
            const float expected = tensor.empty() ? 0 : tensor[piece.begin + i];
            ASSERT_EQ(is[i], expected)
                << "node " << node << ", version " << version << ", tensor "
                << piece.tensor.value() << ", element " << piece.begin + i;
          }
        }
      }
    }
  }

  Rig* const rig_;
  const MakeGradient gradient_;
  std::vector<std::vector<std::vector<float>>> before_;  // node, tensor
  std::vector<std::vector<std::vector<float>>> left_;
  std::vector<std::vector<float>> means_;
};

void Commit(Rig* rig, int64_t applied) {
  rig->SetOptimizerStep(applied);
  rig->OnEachNode([&](Collective* one) { one->OnCommitted(applied); });
}

// I12, bit for bit: applied, skipped and repeated steps, any cut.
TEST(CollectiveFeedbackTest, WhatIsLeftOverIsInTheNextStepThatIsApplied) {
  for (const uint64_t bucket_bytes : {1, 40'000, 4 << 20}) {
    for (const auto& shape : {std::pair(2, 1), std::pair(3, 2)}) {
      Rig rig({.nodes = shape.first,
               .workers = shape.second,
               .bucket_bytes = bucket_bytes,
               .seed = bucket_bytes,
               .exchange = kPolicy});
      Model model(&rig, NoiseGradient());
      rig.CreateAll(Generation(1));
      int64_t applied = 0;
      const auto compute = [&](int64_t step) {
        rig.ReduceAll(Step(step));
        model.Compute();
        model.ExpectSame(applied);
      };
      const auto apply = [&] {
        Commit(&rig, ++applied);
        model.Apply();
      };
      compute(1);
      apply();
      compute(2);
      Commit(&rig, applied);  // skipped
      compute(3);
      apply();
      compute(4);
      rig.CancelAll();  // aborted: it comes again
      rig.CreateAll(Generation(2));
      compute(4);
      compute(4);  // and again
      apply();
      compute(5);
    }
  }
}

// The same in double: what was sent and what is left is what came.
TEST(CollectiveFeedbackTest, NothingIsLost) {  // I12
  Rig rig({.nodes = 2, .workers = 2, .exchange = kPolicy});
  rig.CreateAll(Generation(1));
  constexpr int kSteps = 12;
  std::vector<std::vector<double>> sent(rig.layout().tensors().size());
  for (int step = 1; step <= kSteps; ++step) {
    rig.ReduceAll(Step(step));
    const auto means = rig.Means();
    for (size_t t = 0; t < means.size(); ++t) {
      sent[t].resize(means[t].size());
      for (size_t i = 0; i < means[t].size(); ++i) {
        sent[t][i] += 4.0 * means[t][i];  // of four ranks
      }
    }
    Commit(&rig, step);
  }
  for (const layout::Bucket& bucket : rig.layout().buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      for (const layout::Piece& piece : shard.pieces) {
        const int t = piece.tensor.value();
        const layout::TensorSpec& spec = rig.layout().tensor(piece.tensor);
        const int64_t count = rig.layout().place(piece.tensor).num_elements;
        std::vector<double> came(piece.size());
        for (int rank = 0; rank < 4; ++rank) {
          const auto bytes = NoiseGradient()(spec, count, t, rank);
          std::vector<float> values(count);
          kernels::Reference().widen(bytes.data(), spec.dtype, count,
                                     values.data());
          for (int64_t i = 0; i < piece.size(); ++i) {
            came[i] += kSteps * double{values[piece.begin + i]};
          }
        }
        for (int64_t i = 0; i < piece.size(); ++i) {
          double left = 0;
          for (int node = 0; node < 2; ++node) {
            Residuals& residuals = *rig.residuals(node);
            left += residuals.version(
                Residuals::VersionAt(kSteps))[residuals.OffsetOf(bucket.id) +
                                              piece.bucket_offset + i];
          }
          // fp32 rounding of a dozen additions of numbers of a few units.
          ASSERT_NEAR(sent[t][piece.begin + i] + left, came[i],
                      kSteps * 4 * 0x1p-22)
              << spec.name << " element " << piece.begin + i;
        }
      }
    }
  }
}

// A gradient that always rounds to nothing beside a large one: with feedback
// its mean arrives, without it nothing ever does (the control).
TEST(CollectiveFeedbackTest, SmallGradientsArriveInTime) {
  const MakeGradient gradient = [](const layout::TensorSpec&, int64_t count,
                                   int, int rank) {
    std::vector<float> values(count, 1.0f);
    for (int64_t i = 0; i < count; i += 128) {
      values[i] = rank == 0 ? 100.0f : -100.0f;  // they cancel
    }
    std::vector<std::byte> bytes(count * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  };
  const auto average = [&](const std::string& feedback) {
    Rig rig({.nodes = 2,
             .tensors = {{.name = "w", .shape = {5000}}},
             .gradient = gradient,
             .exchange =
                 "gradients.codec=int4 gradients.error_feedback=" + feedback});
    rig.CreateAll(Generation(1));
    constexpr int kSteps = 200;
    double sum = 0;
    for (int step = 1; step <= kSteps; ++step) {
      rig.ReduceAll(Step(step));
      sum += rig.Means()[0][1];
      Commit(&rig, step);
    }
    if (feedback == "true") {
      // Bounded: a step of the codec at most.
      EXPECT_GT(rig.collective(0)->ResidualNorm(), 0);
      EXPECT_LT(rig.collective(0)->ResidualNorm(), std::sqrt(5000.0) * 110 / 7);
    } else {
      EXPECT_EQ(rig.collective(0)->ResidualNorm(), std::nullopt);
    }
    return sum / kSteps;
  };
  EXPECT_NEAR(average("true"), 1.0, 0.08);
  EXPECT_EQ(average("false"), 0.0);
}

TEST(CollectiveFeedbackTest, ACodecThatLeavesNothingEndsTheResidual) {
  Rig rig({.nodes = 2,
           .exchange = std::string(kPolicy) + " max_relative_error=0.5"});
  rig.CreateAll(Generation(1));
  EXPECT_EQ(rig.collective(0)->ResidualNorm(), std::nullopt);
  rig.ReduceAll(Step(1));
  Commit(&rig, 1);
  std::vector<layout::CodecChange> changes;
  for (const TensorId id : rig.plan().metered(layout::Path::kGradients)) {
    changes.push_back({layout::Path::kGradients, id, layout::CodecId::kNone});
  }
  EXPECT_GT(rig.collective(0)->ResidualNorm(), 0);
  rig.OnEachNode([&](Collective* one) {
    EXPECT_THAT(one->Revise(changes), base::IsOk());
  });
  // Made anew, nothing encoded yet: not known, and not 0.
  EXPECT_EQ(rig.collective(0)->ResidualNorm(), std::nullopt);
  rig.ReduceAll(Step(2));  // what was owed is sent
  EXPECT_EQ(rig.collective(0)->ResidualNorm(), 0);
  EXPECT_EQ(rig.collective(1)->ResidualNorm(), 0);
}

TEST(CollectiveFeedbackTest, NeedsResiduals) {
  Rig rig({.nodes = 2, .exchange = kPolicy});
  Parts parts = rig.PartsOf(0);
  parts.residuals = nullptr;
  EXPECT_THAT(Collective::Create(parts, Generation(1)).status(),
              base::StatusIs(absl::StatusCode::kInvalidArgument, "residuals"));
}

}  // namespace
}  // namespace ballast::collective
