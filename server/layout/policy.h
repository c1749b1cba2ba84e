// How a job's tensors cross between nodes: a preset's name, keys of DESIGN 7.4
// or both, as one text that travels unchanged from the worker.
//
//   exact
//   zeropp
//   zeropp gradients.hadamard=32 override:*.norm.*=none
//   delta4 weights.resync_every_steps=500 metering.one_in=8
//   zeropp max_relative_error=0.1 gradients.error_feedback=true
//   exact secondary_partition=none resident_bytes=268435456
//   delta4 partition_nodes=2
//   weights.codec=int8 weights.block=256 gradients.codec=int4
//
// Words are separated by spaces. The first may be a preset; the others set
// keys of it (of `exact` if there is none), each once. Strict: what is unknown
// or cannot be honoured is refused with the key, the value and what to do.
//
// Threading: plain values and pure functions.
#ifndef SERVER_LAYOUT_POLICY_H_
#define SERVER_LAYOUT_POLICY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/codec.h"
#include "server/layout/codec_table.h"
#include "server/layout/metering.h"

namespace ballast::layout {

// What of the weights a weight codec encodes: the masters themselves, or how
// far each is from its published copy, so that the error is sent next time.
enum class WeightMode : uint8_t { kValue, kDelta };

// One path of one tensor. `block` counts for block codecs only; its bits are
// the codec's.
struct CodecChoice {
  CodecId codec = CodecId::kNone;
  kernels::CodecSpec block;

  bool quantizes() const { return codec != CodecId::kNone; }
  // The same with another codec.
  CodecChoice With(CodecId other) const;
  bool operator==(const CodecChoice&) const = default;
};

// What a preset leaves unquantized, whatever its codecs: norms, biases and
// other small tensors, which are few bytes and matter much.
inline constexpr int64_t kPresetOptOutElements = 16 << 10;
inline constexpr int kMaxOverrides = 64;
inline constexpr int64_t kDefaultResyncSteps = 1000;
inline constexpr int64_t kMinResyncSteps = 200;
inline constexpr size_t kMaxPolicyBytes = 8 << 10;

// Tensors whose name matches (* any run, ? one character) take this codec on
// both paths, with the path's other parameters. The last match counts.
struct CodecOverride {
  std::string match;
  CodecId codec = CodecId::kNone;

  bool operator==(const CodecOverride&) const = default;
};

struct ExchangePolicy {
  CodecChoice weights{CodecId::kNone, {8, 2048}};
  WeightMode weight_mode = WeightMode::kValue;
  // Delta mode: how many steps lie between two looks at a bucket's published
  // bits on all nodes.
  int64_t resync_every_steps = kDefaultResyncSteps;
  CodecChoice gradients{CodecId::kNone, {4, 128}};
  // What encoding takes from a node's gradients is added to those of the next
  // step (kernels/FORMAT.md 10).
  bool error_feedback = false;
  // secondary_partition=none: no node keeps all weights. Workers gather what
  // they need from its owners, and give it back (gather_units.h).
  bool gathers_weights = false;
  // How many nodes share one copy of the optimizer state: partition groups
  // (Topology). 0: all of them.
  int partition_nodes = 0;
  // Of gathered weights that one node may hold at once; 0: no bound.
  uint64_t resident_bytes = 0;
  int64_t opt_out_elements = 0;  // tensors of at most so many: none
  uint64_t seed = 0;             // of stochastic rounding
  // Of how many cells one is compared with what was meant (metering.h); 0:
  // none, and no error is known.
  int64_t metered_one_in = kDefaultMeteredOneIn;
  // Of a tensor on a path, as measured; beyond it the tensor gets a wider codec
  // with the next step (membership/error_budget.h). 0: none.
  double max_relative_error = 0;
  std::vector<CodecOverride> overrides;

  bool operator==(const ExchangePolicy&) const = default;
};

absl::StatusOr<ExchangePolicy> ParsePolicy(std::string_view text);

// InvalidArgument if it cannot be honoured on so many nodes: partition groups
// must divide them, and no error is fed back between groups.
absl::Status CheckNodes(const ExchangePolicy& policy, int num_nodes);

// Of what the policy does, however it was written.
std::string PolicyDigest(const ExchangePolicy& policy);

// What one tensor gets; `weights` and `gradients` apart.
struct TensorCodecs {
  CodecChoice weights;
  CodecChoice gradients;

  const CodecChoice& on(Path path) const {
    return path == Path::kWeights ? weights : gradients;
  }
  CodecChoice& on(Path path) {
    return path == Path::kWeights ? weights : gradients;
  }
};
TensorCodecs CodecsOf(const ExchangePolicy& policy, std::string_view tensor,
                      int64_t num_elements);

// Whether the whole of `name` matches.
bool MatchesPattern(std::string_view pattern, std::string_view name);

}  // namespace ballast::layout

#endif  // SERVER_LAYOUT_POLICY_H_
