#include "tests/sim/corruption.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "kernels/dtype.h"
#include "server/layout/layout.h"

namespace ballast::sim {
namespace {

using collective::ChunkId;

std::vector<ChunkId> ChunksOf(const layout::Layout& layout) {
  std::vector<ChunkId> chunks;
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      for (size_t i = 0; i < shard.chunks.size(); ++i) {
        chunks.push_back({bucket.id, shard.owner, i});
      }
    }
  }
  return chunks;
}

}  // namespace

void Corruption::OnAllPushed(WorkerId id, int64_t step) {
  const int workers = world_->scenario().workers;
  const int node = id.rank / workers;
  std::set<int>& ranks = pushed_[{node, step}];
  ranks.insert(id.rank);
  if (static_cast<int>(ranks.size()) < workers) return;
  for (const auto& [late_node, fault] : std::exchange(late_, {})) {
    if (late_node == node) {
      Try(node, fault, step, 0);
    } else {
      late_.emplace_back(late_node, fault);
    }
  }
  while (const Fault* const fault =
             world_->TakeFault(Fault::Kind::kCorrupt, node, step)) {
    const bool is_now = fault->is_early || random_.Below(4) == 0;
    Try(node, *fault, step, is_now ? 0 : static_cast<int>(random_.Below(40)));
  }
}

int Corruption::CountLate(bool may_miss) const {
  return static_cast<int>(
      std::count_if(late_.begin(), late_.end(), [may_miss](const auto& late) {
        return late.second.may_miss == may_miss;
      }));
}

bool Corruption::Fits(const Fault& fault, NodeRank owner, size_t index,
                      const ChunkId& id) {
  const bool is_own = id.owner == owner;
  return fault.chunk.value_or(index) == index &&
         fault.is_own.value_or(is_own) == is_own;
}

void Corruption::Try(int node, const Fault& fault, int64_t step, int polls) {
  const daemon::JobRuntime* const job = find_(node);
  if (job == nullptr || job->published() == nullptr) {
    late_.emplace_back(node, fault);
    return;
  }
  const layout::Layout& layout = job->job().layout();
  const std::vector<ChunkId> chunks = ChunksOf(layout);
  const NodeRank owner = layout.topology().OwnerOf(NodeRank(node));
  std::vector<ChunkId> possible;  // those that nobody has written yet
  bool is_late = false;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (!Fits(fault, owner, i, chunks[i])) continue;
    if (job->published()->entry(chunks[i]).version.value() < step) {
      possible.push_back(chunks[i]);
    } else {
      is_late = true;
    }
  }
  if (possible.empty()) {
    late_.emplace_back(node, fault);
  } else if (polls == 0 || is_late) {
    Flip(*job, possible[random_.Below(possible.size())], fault);
  } else {
    world_->clock().PostAfter(absl::Microseconds(random_.Below(100)),
                              [this, node, fault, step, polls] {
                                Try(node, fault, step, polls - 1);
                              });
  }
}

void Corruption::Flip(const daemon::JobRuntime& job, const ChunkId& id,
                      const Fault& fault) {
  const layout::Layout& layout = job.job().layout();
  const std::vector<layout::Piece>& pieces = job.published()->chunk(id).pieces;
  const layout::Piece& piece = pieces[random_.Below(pieces.size())];
  const size_t size = SizeOf(layout.tensor(piece.tensor).dtype);
  const std::span<std::byte> weights = job.weights();
  weights[layout.place(piece.tensor).weight_offset + piece.begin * size +
          random_.Below(piece.size() * size)] ^=
      std::byte(1 << random_.Below(8));
  world_->clock().Note("a bit flips");
  if (!fault.is_unseen) return;
  job.published()->entry(id).checksum = job.published()->Checksum(id, weights);
  job.published()->Seal(id.bucket);
}

}  // namespace ballast::sim
