// Which elements of which arrays one node writes, and where in its file they
// lie: pure arithmetic from the layout.
//
//   data of the file   | image                                     | frozen | …
//                      | master… | m… | v… | published… | residual… | …      |
//   a chunk in it        ^^        ^^   ^^   ^^   (four copies)
//   a bucket in it                                  ^^^^
//
// The image is what training changes: it is copied chunk by chunk and then
// written. Each piece of a shard (layout.h) is a section of each kind, so that
// the sections of a kind are in the order of the chunks, without gaps. Frozen
// tensors are written from where the weights are, in the node's parts
// (layout/frozen_parts.h). Of the nodes that keep the same shards (partition
// groups) one stores each (Layout::Stores); a chunk that another stores has no
// copies. Residuals are of all owners' shards, and copied bucket by bucket.
//
// Threading: immutable.
#ifndef SERVER_SNAPSHOT_SHARD_PLAN_H_
#define SERVER_SNAPSHOT_SHARD_PLAN_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "server/base/ids.h"
#include "server/layout/frozen_parts.h"
#include "server/layout/layout.h"
#include "server/snapshot/files/safetensors.h"
#include "server/snapshot/files/section_name.h"

namespace ballast::snapshot {

struct ShardContent {
  int num_moments = 0;
  // The published weights of trainable tensors too: where they are not a cast
  // of the masters.
  bool has_published = false;
  bool has_residuals = false;    // error feedback
  bool gathers_weights = false;  // they are not resident
};

// A piece of a chunk.
struct PieceCopy {
  int64_t state_offset = 0;  // elements, in each state array
  int64_t num_elements = 0;
  uint64_t weight_offset = 0;  // bytes, in the published segment
  uint64_t weight_bytes = 0;
  // Bytes in the image, by kind; those that are not stored do not count.
  std::array<uint64_t, kNumTensorKinds> image_offset{};
};

// A piece of a bucket's residuals.
struct ResidualCopy {
  int64_t bucket_offset = 0;  // elements, in the bucket's scratch
  int64_t num_elements = 0;
  uint64_t image_offset = 0;  // bytes
};

class ShardPlan {
 public:
  ShardPlan(const layout::Layout& layout, NodeRank node,
            const ShardContent& content);

  const ShardContent& content() const { return content_; }
  bool Has(Kind kind) const;
  int64_t num_chunks() const {
    return static_cast<int64_t>(first_copy_.size()) - 1;
  }
  std::span<const PieceCopy> copies(int64_t chunk) const {
    return std::span(copies_).subspan(
        first_copy_[chunk], first_copy_[chunk + 1] - first_copy_[chunk]);
  }
  // By bucket; none without residuals.
  int num_residual_buckets() const {
    return static_cast<int>(residuals_.size());
  }
  std::span<const ResidualCopy> residuals(BucketId bucket) const {
    return residuals_[bucket.value()];
  }
  uint64_t image_bytes() const { return image_bytes_; }

  // Of the image, then the frozen tensors; what follows begins at data_bytes.
  std::span<const Section> sections() const { return sections_; }
  uint64_t data_bytes() const { return data_bytes_; }

  // Of the published segment, what follows the image, in file order.
  std::span<const layout::FrozenPart> frozen() const { return frozen_; }

 private:
  void AddKind(const layout::Layout& layout, NodeRank node, Kind kind);
  void AddResiduals(const layout::Layout& layout, NodeRank node);
  void AddSection(const layout::Layout& layout, TensorId tensor, int64_t begin,
                  int64_t end, Kind kind, int node);
  void AddCopies(const layout::Layout& layout, NodeRank node);
  void AddFrozen(const layout::Layout& layout, NodeRank node);

  const ShardContent content_;
  std::array<uint64_t, kNumTensorKinds> kind_begin_{};
  std::vector<Section> sections_;
  std::vector<PieceCopy> copies_;
  std::vector<size_t> first_copy_;                    // by chunk, and the end
  std::vector<std::vector<ResidualCopy>> residuals_;  // by bucket
  std::vector<layout::FrozenPart> frozen_;
  uint64_t image_bytes_ = 0;
  uint64_t data_bytes_ = 0;
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_SHARD_PLAN_H_
