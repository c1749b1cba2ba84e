// Pure arithmetic from tensors, topology and limits to places: where each
// tensor lies in the segments, how elements are cut into cells, buckets,
// shards and chunks, and who owns what. Every daemon and worker computes or
// receives the same layout; its digest proves it.
//
//   tensor   2048-element cells, the last one short; cuts only between cells
//   bucket   a contiguous run of cells in layout order (may span tensors):
//            the unit of push, reduce and publish
//   shard    the part of a bucket that one node owns: contiguous cells
//   chunk    a run of pieces of one shard: the unit of update and undo
//
//   tensor a (5000)            tensor b (300)   tensor c (4096)
//   |cell0|cell1|c2 904|       |c3 300|         |cell4|cell5|
//   |------ bucket 0 ---------------- ...|  |---- bucket 1 ---|
//
// Threading: immutable after Create; thread-safe.
#ifndef SERVER_LAYOUT_LAYOUT_H_
#define SERVER_LAYOUT_LAYOUT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "server/base/ids.h"

namespace ballast::layout {

inline constexpr int64_t kCellElements = 2048;
inline constexpr uint64_t kAlignment = 64;  // bytes; of every tensor and piece

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;  // empty: a scalar
  kernels::DType dtype = kernels::DType::kFloat32;
  bool trainable = true;
  int group = 0;
};

struct Topology {
  int num_nodes = 1;
  int local_world_size = 1;  // the same on every node; ranks are contiguous
  int world_size() const { return num_nodes * local_world_size; }
  NodeRank NodeOf(Rank rank) const {
    return NodeRank(rank.value() / local_world_size);
  }
  Rank FirstRank(NodeRank node) const {
    return Rank(node.value() * local_world_size);
  }
};

struct Options {
  uint64_t bucket_bytes = 4 << 20;   // of fp32 elements; at least one cell
  uint64_t chunk_bytes = 256 << 10;  // of fp32 elements; at least one cell
  int max_tensors = 100'000;
  int64_t max_elements = int64_t{1} << 40;
};

// A run of elements of one tensor. `begin` is a multiple of kCellElements;
// `end` is one too, or the tensor's size.
struct Piece {
  TensorId tensor;
  int64_t begin = 0;
  int64_t end = 0;
  // Index of element `begin` in this bucket's fp32 scratch (dense, each piece
  // starts at a multiple of 16 elements).
  int64_t bucket_offset = 0;
  // Index of element `begin` in the owner's fp32 state arrays (same rule).
  int64_t state_offset = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const Piece&) const = default;
};

struct Chunk {
  std::vector<Piece> pieces;
  int64_t state_begin = 0;  // [begin, end) in the owner's state arrays
  int64_t state_end = 0;
};

struct Shard {
  NodeRank owner;
  std::vector<Piece> pieces;  // empty if the node owns nothing of this bucket
  int64_t bucket_begin = 0;   // [begin, end) in the bucket's fp32 scratch
  int64_t bucket_end = 0;
  std::vector<Chunk> chunks;
  int64_t num_elements = 0;   // padding not counted
};

struct Bucket {
  BucketId id;
  std::vector<Shard> shards;   // one per node, in node order
  int64_t scratch_elements = 0;  // fp32 elements of the dense bucket, padded
  int64_t num_elements = 0;      // padding not counted
  std::vector<TensorId> tensors;  // those with elements in it, ascending
};

struct TensorPlace {
  int64_t num_elements = 0;
  uint64_t weight_offset = 0;    // bytes, in the weight (and initial) segment
  uint64_t gradient_offset = 0;  // bytes, in a gradient segment; trainable only
  int32_t first_bucket = -1;     // [first, last]; -1: in no bucket
  int32_t last_bucket = -1;
};

class Layout {
 public:
  // InvalidArgument names the tensor, the value and the rule (grammar of
  // names, bounds, duplicate names, negative or overflowing shapes, group out
  // of [0, num_groups)), before anything of that size is allocated.
  static absl::StatusOr<Layout> Create(std::vector<TensorSpec> tensors,
                                       const Topology& topology,
                                       int num_groups, const Options& options);

  std::span<const TensorSpec> tensors() const { return tensors_; }
  std::span<const TensorPlace> places() const { return places_; }
  std::span<const Bucket> buckets() const { return buckets_; }
  const Topology& topology() const { return topology_; }
  const Options& options() const { return options_; }

  const TensorSpec& tensor(TensorId id) const { return tensors_[id.value()]; }
  const TensorPlace& place(TensorId id) const { return places_[id.value()]; }
  const Bucket& bucket(BucketId id) const { return buckets_[id.value()]; }
  const Shard& shard(BucketId bucket, NodeRank owner) const {
    return buckets_[bucket.value()].shards[owner.value()];
  }

  uint64_t weights_bytes() const { return weights_bytes_; }
  uint64_t gradients_bytes() const { return gradients_bytes_; }
  // fp32 elements of one state array (master, one moment, …) of `node`.
  int64_t state_elements(NodeRank node) const {
    return state_elements_[node.value()];
  }
  int64_t trainable_elements() const { return trainable_elements_; }
  int64_t total_elements() const { return total_elements_; }

  // 64-bit hash, as hex, of everything above: equal digests, equal places.
  const std::string& digest() const { return digest_; }
  // The same over tensors and groups only: says whether two jobs are the same
  // model, however they are cut.
  const std::string& model_digest() const { return model_digest_; }

 private:
  Layout() = default;

  std::vector<TensorSpec> tensors_;
  std::vector<TensorPlace> places_;
  std::vector<Bucket> buckets_;
  Topology topology_;
  Options options_;
  std::vector<int64_t> state_elements_;
  uint64_t weights_bytes_ = 0;
  uint64_t gradients_bytes_ = 0;
  int64_t trainable_elements_ = 0;
  int64_t total_elements_ = 0;
  std::string digest_;
  std::string model_digest_;
};

// Says in words how two tensor lists differ ("tensor 3 \"wte\": dtype float32
// here, bfloat16 there"), empty if they do not.
std::string Difference(std::span<const TensorSpec> here,
                       std::span<const TensorSpec> there);

}  // namespace ballast::layout

#endif  // SERVER_LAYOUT_LAYOUT_H_
