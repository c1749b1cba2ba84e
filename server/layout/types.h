// The words of a layout (layout.h has the picture and the rules): plain
// values, comparable, without behaviour.
#ifndef SERVER_LAYOUT_TYPES_H_
#define SERVER_LAYOUT_TYPES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "server/base/ids.h"

namespace ballast::layout {

inline constexpr int64_t kCellElements = 2048;
inline constexpr uint64_t kAlignment = 64;  // bytes; of every tensor and piece
inline constexpr int64_t kAlignElements = 16;  // the same of fp32 arrays

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;  // empty: a scalar
  kernels::DType dtype = kernels::DType::kFloat32;
  bool trainable = true;
  int group = 0;

  bool operator==(const TensorSpec&) const = default;
};

struct Topology {
  int num_nodes = 1;
  int local_world_size = 1;  // the same on every node; ranks are contiguous
  // How many nodes share one copy of the optimizer state. They are a partition
  // group, and every group has a copy (MiCS, arXiv 2205.00119):
  //
  //   6 nodes, 2 of a group   0 1 | 2 3 | 4 5
  //   keep the shards of      0 1 | 0 1 | 0 1
  //
  // Divides num_nodes. 0: all of them, and there is one group.
  int partition_nodes = 0;

  int world_size() const { return num_nodes * local_world_size; }
  int num_owners() const {
    return partition_nodes == 0 ? num_nodes : partition_nodes;
  }
  int num_groups() const { return num_nodes / num_owners(); }
  int GroupOf(NodeRank node) const { return node.value() / num_owners(); }
  // The first of the nodes that keep what `node` keeps: its place in its group.
  NodeRank OwnerOf(NodeRank node) const {
    return NodeRank(node.value() % num_owners());
  }
  // The one of them that is in `group`.
  NodeRank NodeAt(int group, NodeRank owner) const {
    return NodeRank(group * num_owners() + owner.value());
  }
  NodeRank NodeOf(Rank rank) const {
    return NodeRank(rank.value() / local_world_size);
  }
  Rank FirstRank(NodeRank node) const {
    return Rank(node.value() * local_world_size);
  }
};

// Bounds are part of the contract: whatever is beyond them is refused before
// memory of that size is asked for. A cell is never cut, so that buckets and
// chunks hold at least one, whatever their limit.
struct Options {
  // Of fp32 elements, padding counted. At 4 MiB the parts of delta2 on five
  // nodes are 52 KiB, and headers 0.59 % of them (collective/wire).
  uint64_t bucket_bytes = 5 << 20;
  uint64_t chunk_bytes = 256 << 10;  // of fp32 elements, padding counted
  int max_tensors = 100'000;
  int64_t max_elements = int64_t{1} << 40;
  int max_buckets = 1 << 16;  // proto::kMaxBuckets
};

inline constexpr int kMaxDimensions = 32;
inline constexpr int kMaxNodes = 1024;
inline constexpr int kMaxLocalWorldSize = 1024;
inline constexpr int64_t kMaxShards = int64_t{1} << 20;  // nodes x buckets
inline constexpr int64_t kMaxChunks = int64_t{1} << 20;

// A run of elements of one tensor. `begin` is a multiple of kCellElements;
// `end` is one too, or the tensor's size.
struct Piece {
  TensorId tensor;
  int64_t begin = 0;
  int64_t end = 0;
  // Index of element `begin` in this bucket's fp32 scratch (dense, each piece
  // starts at a multiple of kAlignElements).
  int64_t bucket_offset = 0;
  // Index of element `begin` in the owner's fp32 state arrays (same rule).
  // state_offset - bucket_offset is the same for all pieces of a shard.
  int64_t state_offset = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const Piece&) const = default;
};

struct Chunk {
  std::vector<Piece> pieces;
  int64_t state_begin = 0;  // [begin, end) in the owner's state arrays
  int64_t state_end = 0;

  bool operator==(const Chunk&) const = default;
};

struct Shard {
  NodeRank owner;             // the first one, of each group one (Topology)
  std::vector<Piece> pieces;  // empty if the node owns nothing of this bucket
  // [begin, end) in the bucket's fp32 scratch, padding of the last piece
  // included: the shards of a bucket tile its scratch.
  int64_t bucket_begin = 0;
  int64_t bucket_end = 0;
  std::vector<Chunk> chunks;
  int64_t num_elements = 0;  // padding not counted

  bool operator==(const Shard&) const = default;
};

struct Bucket {
  BucketId id;
  std::vector<Shard> shards;      // one per owner, in node order
  int64_t scratch_elements = 0;   // fp32 elements of the dense bucket, padded
  int64_t num_elements = 0;       // padding not counted
  std::vector<TensorId> tensors;  // those with elements in it, ascending

  bool operator==(const Bucket&) const = default;
};

struct TensorPlace {
  int64_t num_elements = 0;
  uint64_t weight_offset = 0;    // bytes, in the weight (and initial) segment
  uint64_t gradient_offset = 0;  // bytes, in a gradient segment; trainable only
  int32_t first_bucket = -1;     // [first, last]; -1: in no bucket
  int32_t last_bucket = -1;

  bool operator==(const TensorPlace&) const = default;
};

}  // namespace ballast::layout

#endif  // SERVER_LAYOUT_TYPES_H_
