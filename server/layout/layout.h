// Pure arithmetic from tensors, topology and limits to places: where each
// tensor lies in the segments, how elements are cut into cells, buckets,
// shards and chunks, and who owns what. Every daemon and worker computes or
// receives the same layout; its digest proves it.
//
//   tensor   2048-element cells, the last one short; cuts only between cells
//   bucket   a contiguous run of cells in layout order (may span tensors):
//            the unit of push, reduce and publish
//   shard    the part of a bucket that one node owns: contiguous cells (in each
//            partition group one node: Topology)
//   chunk    a run of pieces of one shard: the unit of update and undo
//
//   tensor a (5000)            tensor b (300)   tensor c (4096)
//   |cell0|cell1|c2 904|       |c3 300|         |cell4|cell5|
//   |------ bucket 0 -----------------|         |- bucket 1 -|
//
// Trainable tensors come first, in the order given, frozen ones after them
// (in the weight segment only); empty tensors have a place and no cell. So
// the cells of a shard follow one another in the segments too: a shard is one
// byte range there, with alignment gaps between its tensors.
//
// Threading: immutable after Create; thread-safe.
#ifndef SERVER_LAYOUT_LAYOUT_H_
#define SERVER_LAYOUT_LAYOUT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/ids.h"
#include "server/layout/difference.h"  // IWYU pragma: export
#include "server/layout/types.h"       // IWYU pragma: export

namespace ballast::layout {

class Layout {
 public:
  // InvalidArgument names the tensor, the value and the rule (grammar of
  // names, bounds, duplicate names, negative or overflowing shapes, group out
  // of [0, num_groups)), before anything of that size is allocated.
  static absl::StatusOr<Layout> Create(std::vector<TensorSpec> tensors,
                                       const Topology& topology, int num_groups,
                                       const Options& options);

  std::span<const TensorSpec> tensors() const { return tensors_; }
  std::span<const TensorPlace> places() const { return places_; }
  std::span<const Bucket> buckets() const { return buckets_; }
  const Topology& topology() const { return topology_; }
  const Options& options() const { return options_; }

  const TensorSpec& tensor(TensorId id) const { return tensors_[id.value()]; }
  const TensorPlace& place(TensorId id) const { return places_[id.value()]; }
  const Bucket& bucket(BucketId id) const { return buckets_[id.value()]; }
  // The one that `node` keeps.
  const Shard& shard(BucketId bucket, NodeRank node) const {
    return buckets_[bucket.value()].shards[topology_.OwnerOf(node).value()];
  }
  // Whether `node` is the one to store its shard: partition groups, which keep
  // the same shards, take turns.
  bool Stores(NodeRank node, BucketId bucket) const {
    return bucket.value() % topology_.num_groups() == topology_.GroupOf(node);
  }

  uint64_t weights_bytes() const { return weights_bytes_; }
  uint64_t gradients_bytes() const { return gradients_bytes_; }
  // fp32 elements of one state array (master, one moment, …) of `node`.
  int64_t state_elements(NodeRank node) const {
    return state_elements_[topology_.OwnerOf(node).value()];
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
  void PlaceTensors(std::span<const int64_t> sizes);
  void SetDigests(int num_groups);

  std::vector<TensorSpec> tensors_;
  std::vector<TensorPlace> places_;
  std::vector<Bucket> buckets_;
  Topology topology_;
  Options options_;
  std::vector<int64_t> state_elements_;  // by owner
  uint64_t weights_bytes_ = 0;
  uint64_t gradients_bytes_ = 0;
  int64_t trainable_elements_ = 0;
  int64_t total_elements_ = 0;
  std::string digest_;
  std::string model_digest_;
};

}  // namespace ballast::layout

#endif  // SERVER_LAYOUT_LAYOUT_H_
