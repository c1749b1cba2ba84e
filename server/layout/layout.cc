#include "server/layout/layout.h"

#include <utility>

#include "server/base/status_macros.h"
#include "server/layout/bucket_cutter.h"
#include "server/layout/digest.h"
#include "server/layout/tensor_rules.h"

namespace ballast::layout {
namespace {

// Lays tensors out one after the other, each aligned. The bound on elements
// keeps the sum far from overflow (2^40 elements, 2^17 gaps).
class Placer {
 public:
  uint64_t Take(int64_t num_elements, kernels::DType dtype) {
    const uint64_t offset = size_bytes_;
    const uint64_t bytes = num_elements * kernels::SizeOf(dtype);
    size_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  uint64_t size_bytes_ = 0;
};

Digest DigestOfModel(std::span<const TensorSpec> tensors, int num_groups) {
  Digest digest;
  digest.Add("ballast model 1").Add(num_groups).Add(tensors.size());
  for (const TensorSpec& tensor : tensors) {
    digest.Add(tensor.name).Add(tensor.shape.size());
    for (const int64_t extent : tensor.shape) digest.Add(extent);
    digest.Add(static_cast<int64_t>(tensor.dtype));
    digest.Add(tensor.trainable).Add(tensor.group);
  }
  return digest;
}

void AddPiece(const Piece& piece, Digest* digest) {
  digest->Add(piece.tensor.value()).Add(piece.begin).Add(piece.end);
  digest->Add(piece.bucket_offset).Add(piece.state_offset);
}

void AddShard(const Shard& shard, Digest* digest) {
  digest->Add(shard.owner.value()).Add(shard.bucket_begin);
  digest->Add(shard.bucket_end).Add(shard.pieces.size());
  for (const Piece& piece : shard.pieces) AddPiece(piece, digest);
  digest->Add(shard.chunks.size());
  for (const Chunk& chunk : shard.chunks) {
    digest->Add(chunk.state_begin).Add(chunk.state_end);
    digest->Add(chunk.pieces.size());
    for (const Piece& piece : chunk.pieces) AddPiece(piece, digest);
  }
}

}  // namespace

absl::StatusOr<Layout> Layout::Create(std::vector<TensorSpec> tensors,
                                      const Topology& topology, int num_groups,
                                      const Options& options) {
  RETURN_IF_ERROR(CheckTopology(topology));
  ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                   CheckTensors(tensors, num_groups, options));
  Layout layout;
  layout.tensors_ = std::move(tensors);
  layout.topology_ = topology;
  if (topology.num_groups() == 1) layout.topology_.partition_nodes = 0;
  layout.options_ = options;
  layout.PlaceTensors(sizes);

  std::vector<CutTensor> to_cut;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!layout.tensors_[i].trainable || sizes[i] == 0) continue;
    to_cut.push_back({TensorId(static_cast<int32_t>(i)), sizes[i]});
  }
  ASSIGN_OR_RETURN(Cuts cuts, Cut(to_cut, topology.num_owners(), options));
  layout.buckets_ = std::move(cuts.buckets);
  layout.state_elements_ = std::move(cuts.state_elements);
  for (const Bucket& bucket : layout.buckets_) {
    for (const TensorId tensor : bucket.tensors) {
      TensorPlace& place = layout.places_[tensor.value()];
      if (place.first_bucket < 0) place.first_bucket = bucket.id.value();
      place.last_bucket = bucket.id.value();
    }
  }
  layout.SetDigests(num_groups);
  return layout;
}

void Layout::PlaceTensors(std::span<const int64_t> sizes) {
  Placer weights;
  Placer gradients;
  places_.resize(sizes.size());
  for (const bool trainable : {true, false}) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (tensors_[i].trainable != trainable) continue;
      TensorPlace& place = places_[i];
      place.num_elements = sizes[i];
      place.weight_offset = weights.Take(sizes[i], tensors_[i].dtype);
      if (trainable) {
        place.gradient_offset = gradients.Take(sizes[i], tensors_[i].dtype);
        trainable_elements_ += sizes[i];
      }
      total_elements_ += sizes[i];
    }
  }
  weights_bytes_ = weights.size_bytes();
  gradients_bytes_ = gradients.size_bytes();
}

void Layout::SetDigests(int num_groups) {
  Digest digest = DigestOfModel(tensors_, num_groups);
  model_digest_ = digest.ToHex();
  digest.Add("ballast layout 1").Add(topology_.num_nodes);
  digest.Add(topology_.local_world_size).Add(weights_bytes_);
  digest.Add(gradients_bytes_).Add(buckets_.size());
  if (topology_.partition_nodes != 0) {
    digest.Add("partition groups 1").Add(topology_.partition_nodes);
  }
  for (const TensorPlace& place : places_) {
    digest.Add(place.num_elements).Add(place.weight_offset);
    digest.Add(place.gradient_offset).Add(place.first_bucket);
    digest.Add(place.last_bucket);
  }
  for (const Bucket& bucket : buckets_) {
    digest.Add(bucket.scratch_elements).Add(bucket.num_elements);
    for (const Shard& shard : bucket.shards) AddShard(shard, &digest);
  }
  digest_ = digest.ToHex();
}

}  // namespace ballast::layout
