// The oracle: the same training, undistributed. One whole array per tensor,
// the scalar kernels, no bucket, shard or daemon; nodes only as far as each
// one's sum is encoded (kernels/FORMAT.md, "Quantized presets").
//
// Threading: thread-compatible.
#ifndef TESTS_SIM_REFERENCE_MODEL_H_
#define TESTS_SIM_REFERENCE_MODEL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "server/base/ids.h"
#include "server/layout/metering.h"
#include "server/layout/policy.h"
#include "tests/sim/error_model.h"
#include "tests/sim/scenario.h"

namespace ballast::sim {

class ReferenceModel {
 public:
  explicit ReferenceModel(const Scenario& scenario);

  // Trains up to `step` if it has not yet, and hashes the weights after it
  // (0: the initial ones): all tensors, frozen ones too, in order.
  uint64_t WeightsHash(int64_t step);
  // The bytes of one tensor after it.
  std::span<const std::byte> Weights(int64_t step, TensorId tensor);
  bool WasSkipped(int64_t step);
  double GradNorm(int64_t step);
  double RelativeError(int64_t step);
  uint32_t Fallbacks(int64_t step);
  // Of a step's record, by path.
  struct StepQuality {
    std::array<ErrorModel::Quality, layout::kNumPaths> paths{};
    std::array<uint32_t, layout::kNumPaths> num_wider{};
    // By node, of what its gradients left over; none without error feedback,
    // and of a step that is skipped or loads.
    std::vector<double> residual_norms;
  };
  const StepQuality& Quality(int64_t step);

 private:
  struct TensorState {
    layout::TensorSpec spec;
    layout::TensorCodecs policy_codecs;
    layout::TensorCodecs codecs;  // in force
    int index = 0;
    int64_t size = 0;
    std::vector<std::byte> weights;
    std::vector<float> master, m, v;
    // By node: of the updates applied so far, and of the step being computed.
    std::vector<std::vector<float>> residuals, left_over;
  };
  struct Outcome {
    uint64_t hash = 0;
    std::vector<std::vector<std::byte>> weights;  // by tensor
    bool skipped = false;
    double norm = 0;
    double relative_error = 0;
    uint32_t fallbacks = 0;
    StepQuality quality;
  };

  // What the job is in this step.
  void TakeShape(int64_t step);
  void SetCodecs();
  void MoveResiduals(int num_nodes);
  // `hop`: the nodes, in order, then the weights, then the partition groups.
  void ThereAndBack(const TensorState& tensor,
                    const layout::CodecChoice& choice, int64_t step, int hop,
                    std::vector<float>* values) const;
  // `values` as one codec narrower than the one in force has them; empty if
  // the policy allows none.
  std::vector<float> Narrower(const TensorState& tensor, layout::Path path,
                              int64_t step, int hop,
                              std::vector<float> values) const;
  void PublishWeights(TensorState* tensor, int64_t step,
                      std::span<const std::byte> before);
  void CloseErrors(Outcome* outcome);
  std::vector<double> ResidualNorms() const;
  std::vector<float> Sum(const TensorState& tensor, int64_t step,
                         int first_rank, int num_ranks) const;
  // A gradient there and back, its error taken.
  void SendGradient(const TensorState& tensor, int64_t step, int hop,
                    std::vector<float>* values);
  // Of a node, as the owner has it.
  std::vector<float> NodeSum(TensorState* tensor, int64_t step, int node);
  // Of a partition group, as all groups have it.
  std::vector<float> GroupSum(TensorState* tensor, int64_t step, int group);
  std::vector<float> MeanGradient(TensorState* tensor, int64_t step,
                                  bool* is_finite);
  void Step();
  // A step in which rank 0's weights replace the job's.
  void LoadStep(int64_t step, bool resets_state);
  void Keep(Outcome outcome);

  const Scenario scenario_;
  const layout::ExchangePolicy policy_;
  Scenario::Shape shape_;  // of the step that is computed
  int owners_ = 1;         // nodes of a partition group
  bool codes_gradients_ = false;
  std::vector<TensorState> tensors_;
  std::vector<Outcome> outcomes_;  // by step
  ErrorModel errors_;
  int64_t optimizer_step_ = 0;
};

}  // namespace ballast::sim

#endif  // TESTS_SIM_REFERENCE_MODEL_H_
