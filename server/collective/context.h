// What the operations of one collective share.
//
// Threading: built on the control thread; tasks read it, each its own thread's
// pointers.
#ifndef SERVER_COLLECTIVE_CONTEXT_H_
#define SERVER_COLLECTIVE_CONTEXT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "kernels/stochastic.h"
#include "server/base/ids.h"
#include "server/collective/busy_time.h"
#include "server/collective/codec.h"
#include "server/collective/coded_slice.h"
#include "server/collective/error_sums.h"
#include "server/collective/parts.h"
#include "server/collective/published_chunks.h"
#include "server/collective/task_gate.h"
#include "server/collective/tree_plan.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/layout.h"
#include "server/transport/transport.h"

namespace ballast::collective {

constexpr int64_t PadBytes(int64_t bytes) {
  const auto alignment = static_cast<int64_t>(layout::kAlignment);
  return (bytes + alignment - 1) / alignment * alignment;
}

// How operations report; the collective hands it on. Control thread, never
// from inside a call of theirs.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;
  virtual void OnBucketReduced(BucketId bucket, const Reduced& reduced) = 0;
  virtual void OnBucketPublished(BucketId bucket) = 0;
  virtual void OnBucketCompared(BucketId bucket) = 0;
  virtual void OnAllBroadcast() = 0;
  virtual void OnOperationFailed(const absl::Status& status) = 0;
};

// What a task does whose chunk had lost its bits and has them again.
enum class AfterHealing {
  kGoOn,      // the chunk is what the task would have made it
  kRunAgain,  // it is what the task found, before it was damaged
};

// What a task found that wrote nothing.
struct Damage {
  ChunkId id;
  Step step;
  absl::Status why;
  // Of another owner's chunk: the checksum that its owner sent with the step.
  std::optional<uint64_t> told;
};

// Watches the tasks that read and write published weights, so that nobody else
// touches a chunk meanwhile, and puts damaged ones right. Control thread.
class ChunkWatch {
 public:
  virtual ~ChunkWatch() = default;
  virtual void OnSubmitted(const ChunkId& id) = 0;
  virtual void OnSound(const ChunkId& id) = 0;  // its task has done its work
  // `then` is called once unless the gate is shut; an error ends the operation.
  virtual void OnDamaged(
      const Damage& damage,
      absl::AnyInvocable<void(absl::StatusOr<AfterHealing>) &&> then) = 0;
};

// Pointers for one call of a kernel; per pool thread, so that no task
// allocates.
struct ThreadPointers {
  std::vector<const void*> sources;  // local ranks
  std::vector<const float*> sums;    // all subtrees
  std::span<float> scratch;          // of one run, if anything is quantized
  std::span<std::byte> chunk;        // published, if deltas are encoded
};

struct Context {
  Parts parts;
  Generation generation;
  TreePlan tree;
  TaskGate gate;
  std::vector<ThreadPointers> threads;
  OperationObserver* observer;
  ChunkWatch* watch = nullptr;  // null: damage ends the operation
  // By tensor; empty where the path quantizes nothing.
  std::vector<std::unique_ptr<Codec>> gradient_codecs;
  std::vector<std::unique_ptr<Codec>> weight_codecs;
  // What is tried beside them (layout::ExchangePlan::NarrowerChoice); null:
  // nothing.
  std::vector<std::unique_ptr<Codec>> narrower_gradient_codecs;
  std::vector<std::unique_ptr<Codec>> narrower_weight_codecs;
  BusyTime exchanging;  // a bucket is on its way
  BusyTime on_wire;     // something is posted to the transport

  Context(const Parts& the_parts, Generation the_generation,
          OperationObserver* the_observer)
      : parts(the_parts),
        generation(the_generation),
        tree(the_parts.layout->topology()),
        gate(the_parts.pool),
        threads(the_parts.pool->num_threads()),
        observer(the_observer),
        exchanging(the_parts.clock),
        on_wire(the_parts.clock) {
    for (ThreadPointers& pointers : threads) {
      pointers.sources.resize(parts.gradients.size());
      pointers.sums.resize(tree.ranges().size());
    }
  }

  const layout::Topology& topology() const { return parts.layout->topology(); }
  bool has_peers() const { return topology().num_nodes > 1; }
  // Buckets between nodes take turns in so many windows.
  int num_windows() const {
    return std::clamp<int>(static_cast<int>(parts.layout->buckets().size()), 1,
                           parts.buckets_in_flight);
  }
  int WindowOf(BucketId bucket) const { return bucket.value() % num_windows(); }
  int num_owners() const { return topology().num_owners(); }
  int num_groups() const { return topology().num_groups(); }
  bool has_groups() const { return num_groups() > 1; }
  int group() const { return topology().GroupOf(parts.node); }
  // This node's index in what there is of every owner.
  int self() const { return topology().OwnerOf(parts.node).value(); }
  // The owner in this node's partition group.
  NodeRank NodeOf(NodeRank owner) const {
    return topology().NodeAt(group(), owner);
  }

  std::vector<std::unique_ptr<Codec>>& codecs(layout::Path path) {
    return path == layout::Path::kGradients ? gradient_codecs : weight_codecs;
  }
  std::vector<std::unique_ptr<Codec>>& narrower_codecs(layout::Path path) {
    return path == layout::Path::kGradients ? narrower_gradient_codecs
                                            : narrower_weight_codecs;
  }
  bool may_change_codecs() const {
    return parts.plan != nullptr && parts.plan->policy().max_relative_error > 0;
  }
  bool feeds_back(TensorId tensor) const {
    return parts.plan->feeds_back() &&
           parts.plan->MeteredIndex(layout::Path::kGradients, tensor) >= 0;
  }
  const layout::Bucket& bucket(BucketId id) const {
    return parts.layout->bucket(id);
  }
  const layout::Shard& own_shard(BucketId id) const {
    return parts.layout->shard(id, parts.node);
  }
  kernels::DType dtype(const layout::Piece& piece) const {
    return parts.layout->tensor(piece.tensor).dtype;
  }
  const std::byte* GradientOf(int local_rank,
                              const layout::Piece& piece) const {
    return parts.gradients[local_rank].data() +
           parts.layout->place(piece.tensor).gradient_offset +
           piece.begin * kernels::SizeOf(dtype(piece));
  }
  std::byte* WeightsOf(const layout::Piece& piece) const {
    return parts.weights.data() +
           parts.layout->place(piece.tensor).weight_offset +
           piece.begin * kernels::SizeOf(dtype(piece));
  }
  // A shard is one range of the segment, the gaps between tensors included.
  std::span<std::byte> WeightsOf(const layout::Shard& shard) const {
    if (shard.pieces.empty()) return {};
    const layout::Piece& last = shard.pieces.back();
    return {WeightsOf(shard.pieces.front()),
            WeightsOf(last) + last.size() * kernels::SizeOf(dtype(last))};
  }
  const float* MasterOf(const layout::Piece& piece) const {
    return parts.master.data() + piece.state_offset;
  }
  // After the encodings of the nodes' gradients.
  Run WeightRunOf(const CodedRun& coded, Step step) const {
    return RunOf(coded, step, topology().num_nodes);
  }
  // After those of the weights: of a partition group's sum.
  Run GroupRunOf(const CodedRun& coded, Step step) const {
    return RunOf(coded, step, topology().num_nodes + 1 + group());
  }
  Run RunOf(const CodedRun& coded, Step step, int hop) const {
    Run run{.first = coded.piece->begin, .count = coded.piece->size()};
    if (coded.codec->traits().is_stochastic) {
      run.key = kernels::StochasticKey(parts.plan->policy().seed, parts.job_key,
                                       coded.piece->tensor.value(),
                                       step.value(), hop);
    }
    return run;
  }
  const Codec* narrower_codec(layout::Path path, TensorId tensor) const {
    const auto& codecs = path == layout::Path::kGradients
                             ? narrower_gradient_codecs
                             : narrower_weight_codecs;
    return codecs[tensor.value()].get();
  }
  // The errors of one run on the path, if its tensor's turn is in `step`:
  // `values` are encoded as `run` says, `whole` is what an error is relative
  // to, `narrower_values` what the next narrower codec would encode.
  void Meter(layout::Path path, const CodedRun& coded, const Run& run,
             Step step, const float* values, const float* narrower_values,
             const float* whole, ErrorSums* errors) const {
    *errors = {};
    const TensorId tensor = coded.piece->tensor;
    const layout::MeterWindow window = parts.plan->MeteredIn(path, step);
    const int index = parts.plan->MeteredIndex(path, tensor) - window.first;
    if (index < 0 || index >= window.count) return;
    const Codec* const narrower = narrower_codec(path, tensor);
    constexpr int64_t kCell = layout::kCellElements;
    const int64_t num_cells =
        (parts.layout->place(tensor).num_elements + kCell - 1) / kCell;
    for (int64_t begin = 0; begin < run.count; begin += kCell) {
      if (!layout::IsSampled(parts.plan->policy().metered_one_in,
                             (run.first + begin) / kCell, num_cells,
                             window.turn)) {
        continue;
      }
      const Run cell = {.key = run.key,
                        .first = run.first + begin,
                        .count = std::min(kCell, run.count - begin)};
      SampleCell(*coded.codec, {narrower, narrower_values + begin}, cell,
                 values + begin, whole + begin, errors);
    }
  }
  // Adds those of a chunk's runs to their tensors.
  void AddErrors(layout::Path path, std::span<const CodedRun> runs,
                 std::span<const ErrorSums> errors, PathErrors* sum) const {
    for (size_t i = 0; i < runs.size(); ++i) {
      if (errors[i].sampled == 0) continue;
      const TensorId tensor = runs[i].piece->tensor;
      const int index = parts.plan->MeteredIndex(path, tensor) - sum->first;
      if (index < 0 || index >= static_cast<int>(sum->tensors.size())) continue;
      sum->tensors[index].Merge(errors[i]);
    }
  }
  // Of all chunks of the own shard.
  void TellReduced(BucketId bucket, std::span<const Reduced> chunks) const {
    Reduced reduced;
    for (const Reduced& of_chunk : chunks) reduced.Merge(of_chunk);
    if (group() > 0) reduced.norm2 = {};
    observer->OnBucketReduced(bucket, reduced);
  }
  // Of a piece's reduced gradient.
  void AddNorm(const float* gradient, int64_t count, Reduced* reduced) const {
    for (int64_t cell = 0; cell < count; cell += layout::kCellElements) {
      const kernels::CellNorm norm = parts.kernels->cell_norm(
          gradient + cell, std::min(layout::kCellElements, count - cell));
      reduced->finite = reduced->finite && norm.finite;
      if (norm.finite) reduced->norm2.Add(norm.norm2);
    }
  }
  transport::ExchangeSpec Spec(uint32_t phase, BucketId bucket,
                               size_t batch) const {
    transport::ExchangeSpec spec;
    spec.job = parts.job_key;
    spec.generation = generation;
    spec.phase = PhaseOnWire(phase, batch);
    spec.bucket = bucket;
    if (phase == kReducePhase || phase == kGroupsPhase) {
      spec.turn = WindowOf(bucket);
    }
    return spec;
  }
  // Says what the parts of all nodes of the partition group are together. By
  // their mean size, which is the same on all of them, the way is chosen that
  // they take.
  template <typename BytesOf>  // uint64_t (NodeRank owner)
  void Gather(const BytesOf& bytes_of, transport::ExchangeSpec* spec) const {
    spec->pattern = transport::Pattern::kGather;
    for (int i = 0; i < num_owners(); ++i) {
      spec->typical_part_bytes += bytes_of(NodeRank(i));
      if (has_groups()) spec->nodes.push_back(NodeOf(NodeRank(i)));
    }
    spec->typical_part_bytes /= num_owners();
  }
  template <typename BytesOf>  // uint64_t (NodeRank from, NodeRank to): nodes
  void Deliver(const BytesOf& bytes_of, transport::ExchangeSpec* spec) const {
    const NodeRank first = NodeOf(NodeRank(0));
    Gather([&](NodeRank to) { return bytes_of(first, NodeOf(to)); }, spec);
    spec->pattern = transport::Pattern::kDeliver;
    spec->part_bytes = bytes_of;
  }
  // From this node to those that own the same in the other groups, and theirs
  // from them: what there is of every group, as long on all of these nodes.
  template <typename BytesOf>  // std::span<std::byte> (int group)
  transport::ExchangeSpec AcrossGroups(BucketId bucket, size_t batch,
                                       const BytesOf& bytes_of) const {
    transport::ExchangeSpec spec = Spec(kGroupsPhase, bucket, batch);
    spec.pattern = transport::Pattern::kGather;
    for (int g = 0; g < num_groups(); ++g) {
      const NodeRank node = topology().NodeAt(g, NodeRank(self()));
      spec.nodes.push_back(node);
      const std::span<std::byte> bytes = bytes_of(g);
      spec.typical_part_bytes += bytes.size();
      if (g == group()) continue;
      if (!bytes.empty()) {
        spec.receives.push_back({node, bytes});
        spec.sends.push_back({node, bytes_of(group())});
      }
    }
    spec.typical_part_bytes /= num_groups();
    return spec;
  }
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CONTEXT_H_
