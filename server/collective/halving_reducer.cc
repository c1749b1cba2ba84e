#include "server/collective/halving_reducer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "kernels/canonical_tree.h"
#include "server/base/status_macros.h"

namespace ballast::collective {
namespace {

// Of one task that adds: small enough to stay in the cache.
constexpr int64_t kAddElements = 32 << 10;

int NumRounds(size_t num_nodes) { return std::bit_width(num_nodes - 1); }

size_t Reversed(size_t value, int num_bits) {
  size_t reversed = 0;
  for (int bit = 0; bit < num_bits; ++bit) {
    reversed |= (value >> bit & 1) << (num_bits - 1 - bit);
  }
  return reversed;
}

}  // namespace

bool HalvingReducer::CanHalve(const Context& context) {
  const size_t nodes = context.parts.layout->topology().num_nodes;
  // Each node's ranks are one subtree: as many sums as nodes.
  return nodes > 1 && !context.has_groups() && std::has_single_bit(nodes) &&
         context.tree.ranges().size() == nodes;
}

uint64_t HalvingReducer::PartBytes(const Context& context, BucketId bucket) {
  const layout::Bucket& cut = context.bucket(bucket);
  return cut.scratch_elements * sizeof(float) / cut.shards.size();
}

HalvingReducer::Plan HalvingReducer::MakePlan(const Context& context,
                                              BucketId bucket) {
  Plan plan;
  plan.cut = CutSumBatches(context.bucket(bucket), context.parts.batch_bytes);
  const size_t nodes = plan.cut.size();
  const size_t self = context.parts.node.value();
  plan.place.resize(nodes);
  for (size_t i = 0; i < nodes; ++i) {
    plan.order.push_back(Reversed(i, NumRounds(nodes)));
    plan.place[plan.order.back()] = i;
  }
  for (size_t batch = 0; batch < plan.cut[0].size(); ++batch) {
    std::vector<int64_t>& begins = plan.begins.emplace_back();
    begins.push_back(0);
    for (const size_t owner : plan.order) {
      begins.push_back(begins.back() + plan.cut[owner][batch].elements());
    }
    // The half that this node keeps first is the most that it receives.
    const size_t half = plan.place[self] / (nodes / 2) * (nodes / 2);
    plan.sums_at.push_back(plan.elements);
    plan.received_at.push_back(plan.elements + begins.back());
    plan.elements += begins.back() + begins[half + nodes / 2] - begins[half];
  }
  return plan;
}

int64_t HalvingReducer::WindowElements(const Context& context,
                                       BucketId bucket) {
  return MakePlan(context, bucket).elements;
}

absl::StatusOr<std::unique_ptr<HalvingReducer>> HalvingReducer::Create(
    Context* context, BucketId bucket, std::span<float> window) {
  auto reducer = std::unique_ptr<HalvingReducer>(
      new HalvingReducer(context, bucket, window));
  for (size_t batch = 0; batch < reducer->plan_.begins.size(); ++batch) {
    RETURN_IF_ERROR(reducer->MakeBatch(batch));
  }
  return reducer;
}

HalvingReducer::HalvingReducer(Context* context, BucketId bucket,
                               std::span<float> window)
    : context_(context),
      bucket_(context->bucket(bucket)),
      own_(context->own_shard(bucket)),
      window_(window),
      plan_(MakePlan(*context, bucket)),
      results_(own_.chunks.size()),
      pipeline_(context,
                [this] { context_->TellReduced(bucket_.id, results_); }) {}

HalvingReducer::Run HalvingReducer::RunOf(size_t batch, size_t first,
                                          size_t end) const {
  const std::vector<int64_t>& begins = plan_.begins[batch];
  return {first, end, begins[first], begins[end] - begins[first]};
}

std::span<float> HalvingReducer::Sums(size_t batch, const Run& run) {
  return window_.subspan(plan_.sums_at[batch] + run.begin, run.elements);
}

std::span<float> HalvingReducer::Received(size_t batch, const Run& run) {
  return window_.subspan(plan_.received_at[batch], run.elements);
}

absl::Status HalvingReducer::MakeBatch(size_t batch) {
  const size_t nodes = plan_.order.size();
  const size_t self = context_->parts.node.value();
  BatchPipeline::BatchParts parts;
  std::vector<BatchPipeline::Work> tasks = SumTasks(batch);
  size_t first = 0;
  bool was_lower = false;
  for (int round = 0; round < NumRounds(nodes); ++round) {
    const NodeRank partner(static_cast<int>(self ^ size_t{1} << round));
    const size_t half = nodes >> (round + 1);
    const bool is_upper = (self >> round & 1) != 0;
    const Run kept = RunOf(batch, first + (is_upper ? half : 0),
                           first + (is_upper ? 2 * half : half));
    const Run sent = RunOf(batch, first + (is_upper ? 0 : half),
                           first + (is_upper ? half : 2 * half));
    if (round > 0)
      tasks = AddTasks(batch, RunOf(batch, first, first + 2 * half), was_lower);
    transport::ExchangeSpec spec =
        context_->Spec(kReducePhase, bucket_.id, batch);
    spec.phase |= static_cast<uint32_t>(round) << transport::kRoundShift;
    if (sent.elements > 0) {
      spec.sends.push_back({partner, std::as_bytes(Sums(batch, sent))});
      parts.payload_bytes += PayloadOf(batch, sent);
    }
    if (kept.elements > 0) {
      spec.receives.push_back(
          {partner, std::as_writable_bytes(Received(batch, kept))});
    }
    if (round == 0) {
      parts.before = std::move(tasks);
      parts.spec = std::move(spec);
    } else {
      parts.more.push_back({std::move(tasks), std::move(spec)});
    }
    first = kept.first;
    was_lower = !is_upper;
  }
  parts.after = FinishTasks(batch, was_lower);
  return pipeline_.Add(std::move(parts));
}

std::vector<BatchPipeline::Work> HalvingReducer::SumTasks(size_t batch) {
  std::vector<BatchPipeline::Work> tasks;
  for (size_t owner = 0; owner < plan_.order.size(); ++owner) {
    const Batch& cut = plan_.cut[owner][batch];
    float* const sums = window_.data() + plan_.sums_at[batch] +
                        plan_.begins[batch][plan_.place[owner]];
    for (size_t i = cut.first_chunk; i < cut.end_chunk; ++i) {
      const layout::Chunk& chunk = bucket_.shards[owner].chunks[i];
      tasks.push_back({[this, &cut, &chunk, sums](int thread) {
        const Parts& parts = context_->parts;
        std::vector<const void*>& sources = context_->threads[thread].sources;
        for (const layout::Piece& piece : chunk.pieces) {
          for (size_t rank = 0; rank < sources.size(); ++rank) {
            sources[rank] = context_->GradientOf(static_cast<int>(rank), piece);
          }
          parts.kernels->tree_sum(
              context_->dtype(piece), sources, piece.size(),
              sums + (piece.bucket_offset - cut.bucket_begin));
        }
        return absl::OkStatus();
      }});
    }
  }
  return tasks;
}

std::vector<BatchPipeline::Work> HalvingReducer::AddTasks(size_t batch,
                                                          const Run& kept,
                                                          bool is_lower) {
  std::vector<BatchPipeline::Work> tasks;
  const std::span<float> sums = Sums(batch, kept);
  const std::span<float> received = Received(batch, kept);
  for (int64_t at = 0; at < kept.elements; at += kAddElements) {
    const int64_t count = std::min(kAddElements, kept.elements - at);
    tasks.push_back({[this, own = sums.data() + at,
                      theirs = received.data() + at, count, is_lower](int) {
      std::array<const void*, 2> sources = {own, theirs};
      if (!is_lower) std::swap(sources[0], sources[1]);
      context_->parts.kernels->tree_sum(kernels::DType::kFloat32, sources,
                                        count, own);
      return absl::OkStatus();
    }});
  }
  return tasks;
}

std::vector<BatchPipeline::Work> HalvingReducer::FinishTasks(size_t batch,
                                                             bool is_lower) {
  std::vector<BatchPipeline::Work> tasks;
  const size_t self = context_->parts.node.value();
  const Batch& cut = plan_.cut[self][batch];
  const size_t place = plan_.place[self];
  const Run run = RunOf(batch, place, place + 1);
  const float* const sums = Sums(batch, run).data();
  const float* const received = Received(batch, run).data();
  for (size_t i = cut.first_chunk; i < cut.end_chunk; ++i) {
    tasks.push_back({[this, &cut, i, sums, received, is_lower](int) {
      const Parts& parts = context_->parts;
      const int world_size = parts.layout->topology().world_size();
      const kernels::RankRange whole{0, world_size};
      results_[i] = {};
      for (const layout::Piece& piece : own_.chunks[i].pieces) {
        const int64_t at = piece.bucket_offset - cut.bucket_begin;
        float* const out = parts.state_gradient.data() + piece.state_offset;
        std::array<const void*, 2> sources = {sums + at, received + at};
        if (!is_lower) std::swap(sources[0], sources[1]);
        parts.kernels->tree_sum(kernels::DType::kFloat32, sources, piece.size(),
                                out);
        const float* const sum = out;
        parts.kernels->finish_mean({&whole, 1}, {&sum, 1}, world_size,
                                   piece.size(), out);
        context_->AddNorm(out, piece.size(), &results_[i]);
      }
      return absl::OkStatus();
    }});
  }
  return tasks;
}

uint64_t HalvingReducer::PayloadOf(size_t batch, const Run& run) const {
  uint64_t bytes = 0;
  for (size_t i = run.first; i < run.end; ++i) {
    const size_t owner = plan_.order[i];
    const Batch& cut = plan_.cut[owner][batch];
    for (size_t c = cut.first_chunk; c < cut.end_chunk; ++c) {
      for (const layout::Piece& piece :
           bucket_.shards[owner].chunks[c].pieces) {
        bytes += piece.size() * sizeof(float);
      }
    }
  }
  return bytes;
}

}  // namespace ballast::collective
