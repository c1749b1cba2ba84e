#include "server/layout/bucket_cutter.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"

namespace ballast::layout {
namespace {

// Contiguous cells of one tensor.
struct Run {
  TensorId tensor;
  int64_t begin = 0;
  int64_t end = 0;
};

// How many of the run's first cells fit into `room` padded elements.
int64_t CellsThatFit(int64_t elements, int64_t room) {
  const int64_t full = std::min(elements / kCellElements, room / kCellElements);
  const int64_t tail = elements % kCellElements;
  const bool tail_fits = full == elements / kCellElements && tail > 0 &&
                         full * kCellElements + PadElements(tail) <= room;
  return full + (tail_fits ? 1 : 0);
}

// End of the run's first `cells` cells.
int64_t EndOf(const Run& run, int64_t cells) {
  return std::min(run.end, run.begin + cells * kCellElements);
}

// At least one cell, at most what any job can hold.
int64_t LimitElements(uint64_t limit_bytes) {
  return std::clamp<uint64_t>(limit_bytes / sizeof(float), kCellElements,
                              uint64_t{1} << 60);
}

class Cutter {
 public:
  Cutter(int num_owners, const Options& options)
      : num_owners_(num_owners),
        max_buckets_(
            std::min<int64_t>(options.max_buckets, kMaxShards / num_owners)),
        bucket_limit_(LimitElements(options.bucket_bytes)),
        chunk_limit_(LimitElements(options.chunk_bytes)),
        options_(options) {
    cuts_.state_elements.resize(num_owners);
  }

  absl::Status Add(const CutTensor& tensor) {
    Run rest{tensor.id, 0, tensor.num_elements};
    while (rest.begin < rest.end) {
      const int64_t cells =
          CellsThatFit(rest.end - rest.begin, bucket_limit_ - used_);
      if (cells == 0) {  // a cell always fits into an empty bucket
        RETURN_IF_ERROR(CloseBucket());
        continue;
      }
      const Run run{rest.tensor, rest.begin, EndOf(rest, cells)};
      runs_.push_back(run);
      used_ += PadElements(run.end - run.begin);
      rest.begin = run.end;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Cuts> Finish() && {
    if (!runs_.empty()) RETURN_IF_ERROR(CloseBucket());
    return std::move(cuts_);
  }

 private:
  // Cuts the open bucket into shards: node r of N gets the cells
  // [C r / N, C (r + 1) / N) of its C cells.
  absl::Status CloseBucket() {
    if (static_cast<int64_t>(cuts_.buckets.size()) >= max_buckets_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the job has more than ", max_buckets_, " buckets of ",
                       options_.bucket_bytes, " bytes on ", num_owners_,
                       " nodes; raise bucket_bytes"));
    }
    Bucket bucket;
    bucket.id = BucketId(static_cast<int32_t>(cuts_.buckets.size()));
    bucket.scratch_elements = used_;
    int64_t num_cells = 0;
    for (const Run& run : runs_) {
      num_cells += NumCells(run.end - run.begin);
      bucket.num_elements += run.end - run.begin;
      bucket.tensors.push_back(run.tensor);
    }
    next_run_ = 0;
    bucket_offset_ = 0;
    bucket.shards.reserve(num_owners_);
    for (int64_t r = 0; r < num_owners_; ++r) {
      const int64_t cells =
          num_cells * (r + 1) / num_owners_ - num_cells * r / num_owners_;
      bucket.shards.push_back(TakeShard(NodeRank(r), cells));
      RETURN_IF_ERROR(CutChunks(&bucket.shards.back()));
    }
    cuts_.buckets.push_back(std::move(bucket));
    runs_.clear();
    used_ = 0;
    return absl::OkStatus();
  }

  // The next `cells` cells of the open bucket.
  Shard TakeShard(NodeRank owner, int64_t cells) {
    int64_t& state_end = cuts_.state_elements[owner.value()];
    Shard shard;
    shard.owner = owner;
    shard.bucket_begin = bucket_offset_;
    while (cells > 0) {
      Run& run = runs_[next_run_];
      const int64_t end = EndOf(run, cells);
      const Piece piece{run.tensor, run.begin, end, bucket_offset_, state_end};
      shard.pieces.push_back(piece);
      shard.num_elements += piece.size();
      bucket_offset_ += PadElements(piece.size());
      state_end += PadElements(piece.size());
      cells -= NumCells(piece.size());
      run.begin = end;
      if (run.begin == run.end) ++next_run_;
    }
    shard.bucket_end = bucket_offset_;
    return shard;
  }

  absl::Status CutChunks(Shard* shard) {
    int64_t room = 0;
    for (Piece rest : shard->pieces) {
      while (rest.size() > 0) {
        int64_t cells = CellsThatFit(rest.size(), room);
        if (cells == 0) {
          if (++num_chunks_ > kMaxChunks) {
            return absl::ResourceExhaustedError(absl::StrCat(
                "the job has more than ", kMaxChunks, " chunks of ",
                options_.chunk_bytes, " bytes; raise chunk_bytes"));
          }
          shard->chunks.emplace_back();
          shard->chunks.back().state_begin = rest.state_offset;
          room = chunk_limit_;
          cells = CellsThatFit(rest.size(), room);
        }
        Piece piece = rest;
        piece.end = std::min(rest.end, rest.begin + cells * kCellElements);
        Chunk& chunk = shard->chunks.back();
        chunk.pieces.push_back(piece);
        chunk.state_end = piece.state_offset + PadElements(piece.size());
        room -= PadElements(piece.size());
        rest.bucket_offset += piece.size();
        rest.state_offset += piece.size();
        rest.begin = piece.end;
      }
    }
    return absl::OkStatus();
  }

  const int num_owners_;
  const int64_t max_buckets_;
  const int64_t bucket_limit_;  // padded elements
  const int64_t chunk_limit_;
  const Options& options_;

  Cuts cuts_;
  int64_t num_chunks_ = 0;
  // The open bucket: its runs and their padded elements; while it is closed,
  // the run that the next shard begins in, and where.
  std::vector<Run> runs_;
  int64_t used_ = 0;
  size_t next_run_ = 0;
  int64_t bucket_offset_ = 0;
};

}  // namespace

absl::StatusOr<Cuts> Cut(std::span<const CutTensor> tensors, int num_owners,
                         const Options& options) {
  Cutter cutter(num_owners, options);
  for (const CutTensor& tensor : tensors) {
    RETURN_IF_ERROR(cutter.Add(tensor));
  }
  return std::move(cutter).Finish();
}

}  // namespace ballast::layout
