#include "server/snapshot/shard_plan.h"

#include <utility>

#include "kernels/dtype.h"

namespace ballast::snapshot {

ShardPlan::ShardPlan(const layout::Layout& layout, NodeRank node,
                     const ShardContent& content)
    : content_(content) {
  for (int k = 0; k < kNumTensorKinds; ++k) {
    const Kind kind = static_cast<Kind>(k);
    kind_begin_[k] = data_bytes_;
    if (Has(kind)) AddKind(layout, node, kind);
  }
  if (content.has_residuals) AddResiduals(layout, node);
  image_bytes_ = data_bytes_;
  AddCopies(layout, node);
  AddFrozen(layout, node);
}

bool ShardPlan::Has(Kind kind) const {
  switch (kind) {
    case Kind::kMaster:
      return true;
    case Kind::kM:
      return content_.num_moments > 0;
    case Kind::kV:
      return content_.num_moments > 1;
    case Kind::kPublished:
      return content_.has_published;
    case Kind::kResidual:
    case Kind::kCursor:
      break;
  }
  return false;
}

void ShardPlan::AddKind(const layout::Layout& layout, NodeRank node,
                        Kind kind) {
  for (const layout::Bucket& bucket : layout.buckets()) {
    if (!layout.Stores(node, bucket.id)) continue;
    for (const auto& piece : layout.shard(bucket.id, node).pieces) {
      AddSection(layout, piece.tensor, piece.begin, piece.end, kind, 0);
    }
  }
}

void ShardPlan::AddResiduals(const layout::Layout& layout, NodeRank node) {
  for (const layout::Bucket& bucket : layout.buckets()) {
    std::vector<ResidualCopy>& copies = residuals_.emplace_back();
    for (const layout::Shard& shard : bucket.shards) {
      for (const layout::Piece& piece : shard.pieces) {
        copies.push_back({piece.bucket_offset, piece.size(), data_bytes_});
        AddSection(layout, piece.tensor, piece.begin, piece.end,
                   Kind::kResidual, node.value());
      }
    }
  }
}

void ShardPlan::AddSection(const layout::Layout& layout, TensorId tensor,
                           int64_t begin, int64_t end, Kind kind, int node) {
  const layout::TensorSpec& spec = layout.tensor(tensor);
  Section section;
  section.name = ToText(SectionName{kind, spec.name, begin, end, node});
  section.type =
      kind == Kind::kPublished ? ToElementType(spec.dtype) : ElementType::kF32;
  section.shape = {end - begin};
  section.begin = data_bytes_;
  data_bytes_ += (end - begin) * SizeOf(section.type);
  section.end = data_bytes_;
  sections_.push_back(std::move(section));
}

void ShardPlan::AddCopies(const layout::Layout& layout, NodeRank node) {
  uint64_t elements = 0;
  uint64_t weight_bytes = 0;
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const auto& chunk : layout.shard(bucket.id, node).chunks) {
      first_copy_.push_back(copies_.size());
      if (!layout.Stores(node, bucket.id)) continue;  // another group does
      for (const layout::Piece& piece : chunk.pieces) {
        const uint64_t size =
            kernels::SizeOf(layout.tensor(piece.tensor).dtype);
        PieceCopy copy;
        copy.state_offset = piece.state_offset;
        copy.num_elements = piece.size();
        copy.weight_offset =
            layout.place(piece.tensor).weight_offset + piece.begin * size;
        copy.weight_bytes = piece.size() * size;
        for (int k = 0; k < kNumTensorKinds; ++k) {
          const bool is_published = static_cast<Kind>(k) == Kind::kPublished;
          copy.image_offset[k] =
              kind_begin_[k] +
              (is_published ? weight_bytes : elements * sizeof(float));
        }
        elements += piece.size();
        weight_bytes += copy.weight_bytes;
        copies_.push_back(copy);
      }
    }
  }
  first_copy_.push_back(copies_.size());
}

void ShardPlan::AddFrozen(const layout::Layout& layout, NodeRank node) {
  frozen_ = layout::StoredFrozenParts(layout, node, content_.gathers_weights);
  for (const layout::FrozenPart& part : frozen_) {
    AddSection(layout, part.tensor, part.begin, part.end, Kind::kPublished, 0);
  }
}

}  // namespace ballast::snapshot
