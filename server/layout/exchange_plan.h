// A policy applied to a layout: the codecs of every tensor, and the bytes that
// they come to between nodes.
//
// One node sends, per committed step,
//
//   gradients   every other owner's slice, as this node contributes to it
//   weights     its own slice, N - 1 times
//
// In partition groups of p nodes (Topology) both count within the group, and
//
//   groups      its own slice, of its group's sum, N / p - 1 times
//
// Over all nodes that is N - 1 times the encoded model, W + G; with groups
// (N / p)(p - 1)(W + G) + N / p (N / p - 1) G. Each piece is
// whole cells (or ends with its tensor), so cuts add no byte to codes and
// scales. Alignment and headers are not payload.
//
// Threading: thread-compatible; changed by Apply only.
#ifndef SERVER_LAYOUT_EXCHANGE_PLAN_H_
#define SERVER_LAYOUT_EXCHANGE_PLAN_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/dtype.h"
#include "server/base/ids.h"
#include "server/layout/layout.h"
#include "server/layout/metering.h"
#include "server/layout/policy.h"

namespace ballast::layout {

struct PayloadBytes {
  uint64_t gradients = 0;  // between partition groups too
  uint64_t weights = 0;

  uint64_t total() const { return gradients + weights; }
  bool operator==(const PayloadBytes&) const = default;
};

// From now on, another codec for one tensor on one path.
struct CodecChange {
  Path path = Path::kGradients;
  TensorId tensor;
  CodecId codec = CodecId::kNone;
};

class ExchangePlan {
 public:
  ExchangePlan(const ExchangePolicy& policy, const Layout& layout);

  const ExchangePolicy& policy() const { return policy_; }
  // In force.
  const TensorCodecs& codecs(TensorId tensor) const {
    return codecs_[tensor.value()];
  }
  // As the policy has them; an error budget may have made them wider.
  const TensorCodecs& policy_codecs(TensorId tensor) const {
    return policy_codecs_[tensor.value()];
  }

  // DataLoss, and nothing changed, if the change is of no metered tensor or to
  // a codec that is narrower than the policy's. What was made wider keeps its
  // path: a tensor with codec none rides along as it is.
  absl::Status Apply(const CodecChange& change);
  // Of a tensor that was made wider, what the next narrower codec is.
  std::optional<CodecChoice> NarrowerChoice(Path path, TensorId tensor) const;
  // Tensors that were made wider on the path.
  int num_wider(Path path) const {
    return num_wider_[static_cast<size_t>(path)];
  }

  // Whether any tensor that crosses between nodes is quantized on the path.
  // With one node nothing crosses, and nothing is; weights do not cross either
  // where every node is a partition group.
  bool quantizes_weights() const { return quantizes_weights_; }
  bool quantizes_gradients() const { return quantizes_gradients_; }

  // Every node keeps residuals of its gradients (kernels/FORMAT.md 10).
  bool feeds_back() const {
    return quantizes_gradients_ && policy_.error_feedback;
  }

  // Weights cross as differences from their published copy: every node keeps
  // checksums of what it has published.
  bool codes_deltas() const {
    return quantizes_weights_ && policy_.weight_mode == WeightMode::kDelta;
  }

  // The tensors whose error is measured on the path: those that the policy
  // quantizes there, ascending.
  std::span<const TensorId> metered(Path path) const {
    return metered_[static_cast<size_t>(path)];
  }
  // The place among them; -1 if it is none.
  int MeteredIndex(Path path, TensorId tensor) const {
    return metered_index_[static_cast<size_t>(path)][tensor.value()];
  }
  // Those of them whose turn it is in `step`; none where nothing is measured.
  MeterWindow MeteredIn(Path path, Step step) const;

  // W and G: what the trainable tensors take when encoded once. A path that
  // quantizes nothing sends the sums of the canonical tree's subtrees instead,
  // one or more per node (PerStep knows); here they count once.
  PayloadBytes Model(const Layout& layout) const;

  // What `node` sends for one committed step.
  PayloadBytes PerStep(const Layout& layout, NodeRank node) const;

 private:
  const ExchangePolicy policy_;
  std::vector<TensorCodecs> policy_codecs_;
  std::vector<TensorCodecs> codecs_;
  std::array<int, kNumPaths> num_wider_{};
  std::array<std::vector<TensorId>, kNumPaths> metered_;
  std::array<std::vector<int>, kNumPaths> metered_index_;  // by tensor
  bool quantizes_weights_ = false;
  bool quantizes_gradients_ = false;
};

// Codes and scales of whole cells (the last one may be short), or the elements
// as they are.
uint64_t PayloadOf(const CodecChoice& choice, kernels::DType unquantized,
                   int64_t count);

}  // namespace ballast::layout

#endif  // SERVER_LAYOUT_EXCHANGE_PLAN_H_
