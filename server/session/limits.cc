#include "server/session/limits.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "kernels/dtype.h"
#include "kernels/optimizer_name.h"
#include "proto/control_block.h"
#include "proto/group_values.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/ipc/control_block_view.h"
#include "server/layout/difference.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/frozen_parts.h"
#include "server/layout/gather_units.h"
#include "server/layout/policy.h"
#include "server/layout/replica_holder.h"
#include "server/session/group_rules.h"

namespace ballast::session {
namespace {

constexpr uint64_t kMaxBucketBytes = 1 << 30;

absl::Status Invalid(std::string_view field, const std::string& value,
                     std::string_view rule) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(field), " is ", value, ", ", std::string(rule)));
}

template <typename T>
absl::Status CheckRange(std::string_view field, T value, T min, T max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return Invalid(field, absl::StrCat(value),
                 absl::StrCat("must be in [", min, ", ", max, "]"));
}

// Of the state that `node` stores: so many fp32 arrays.
uint64_t StoredBytes(const layout::Layout& layout, NodeRank node,
                     uint64_t arrays) {
  uint64_t bytes = 0;
  for (const layout::Bucket& bucket : layout.buckets()) {
    if (!layout.Stores(node, bucket.id)) continue;
    const layout::Shard& shard = layout.shard(bucket.id, node);
    bytes += (shard.bucket_end - shard.bucket_begin) * 4 * arrays;
  }
  return bytes;
}

// Of frozen tensors, of which every node stores some.
uint64_t FrozenBytes(const layout::Layout& layout, NodeRank node,
                     bool are_gathered) {
  uint64_t bytes = 0;
  for (const layout::FrozenPart& part :
       layout::StoredFrozenParts(layout, node, are_gathered)) {
    bytes += part.size_bytes;
  }
  return bytes;
}

absl::Status CheckGroupCount(const JobSpec& spec) {
  if (spec.groups.empty() || spec.groups.size() > proto::kMaxParamGroups) {
    return Invalid(
        "the number of param groups", absl::StrCat(spec.groups.size()),
        absl::StrCat("must be in [1, ", proto::kMaxParamGroups, "]"));
  }
  return absl::OkStatus();
}

std::vector<proto::GroupValues> Values(const JobSpec& spec) {
  std::vector<proto::GroupValues> values;
  for (const auto& group : spec.groups) values.push_back(ToValues(group));
  return values;
}

std::string Differs(std::string_view field, const std::string& here,
                    const std::string& there) {
  return absl::StrCat(std::string(field), " is ", there, " here, ", here,
                      " on the ranks that are attached");
}

constexpr char kForMemory[] = "ballast/for-memory";
constexpr char kForDraining[] = "ballast/for-draining";

}  // namespace

absl::Status CheckPlacement(const Placement& p, const Limits& limits) {
  RETURN_IF_ERROR(CheckRange("world_size", p.world_size, 1, 1 << 20));
  if (p.world_size > limits.max_workers_per_job) {
    return absl::ResourceExhaustedError(
        absl::StrCat("world_size is ", p.world_size,
                     ", above this daemon's limits.max_workers_per_job = ",
                     limits.max_workers_per_job));
  }
  RETURN_IF_ERROR(
      CheckRange("local_world_size", p.local_world_size, 1, p.world_size));
  if (p.world_size % p.local_world_size != 0) {
    return Invalid("world_size", absl::StrCat(p.world_size),
                   absl::StrCat("not a multiple of local_world_size = ",
                                p.local_world_size));
  }
  RETURN_IF_ERROR(
      CheckRange("node_rank", p.node_rank.value(), 0, p.num_nodes() - 1));
  RETURN_IF_ERROR(CheckRange("local_rank", p.local_rank.value(), 0,
                             p.local_world_size - 1));
  const int expected =
      p.node_rank.value() * p.local_world_size + p.local_rank.value();
  if (p.rank.value() != expected) {
    return Invalid(
        "rank", absl::StrCat(p.rank.value()),
        absl::StrCat("but node_rank ", p.node_rank.value(),
                     " x local_world_size ", p.local_world_size,
                     " + local_rank ", p.local_rank.value(), " is ", expected));
  }
  return absl::OkStatus();
}

absl::Status CheckSpec(const JobSpec& spec, const Limits& limits) {
  RETURN_IF_ERROR(base::CheckJobName(spec.name));
  RETURN_IF_ERROR(base::CheckTenantName(spec.tenant));
  RETURN_IF_ERROR(layout::ParsePolicy(spec.exchange).status());
  RETURN_IF_ERROR(CheckGroupCount(spec));
  RETURN_IF_ERROR(
      CheckGroups(spec.optimizer, AnyMomentum(spec.groups), Values(spec)));
  if (!std::isfinite(spec.gradient_clipping) || spec.gradient_clipping < 0) {
    return Invalid("gradient_clipping", absl::StrCat(spec.gradient_clipping),
                   "must be finite and not negative (0 is off)");
  }
  RETURN_IF_ERROR(CheckRange<uint64_t>("bucket_bytes", spec.bucket_bytes, 0,
                                       kMaxBucketBytes));
  if (spec.hold != absl::ZeroDuration() &&
      (spec.hold < absl::Milliseconds(1) || spec.hold > absl::Hours(24 * 30))) {
    return Invalid("hold", absl::FormatDuration(spec.hold),
                   "must be 0 (the default) or between 1 ms and 30 days");
  }
  if (spec.tensors.empty()) {
    return absl::InvalidArgumentError("the job has no tensors");
  }
  if (static_cast<int64_t>(spec.tensors.size()) > limits.max_tensors) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the job has ", spec.tensors.size(),
                     " tensors, above this daemon's limits.max_tensors = ",
                     limits.max_tensors));
  }
  return absl::OkStatus();
}

std::string Difference(const JobSpec& job, const JobSpec& other) {
  if (job.tenant != other.tenant) {
    return absl::StrCat("tenant is ", base::Quoted(other.tenant),
                        " here, another on the ranks that are attached");
  }
  const std::string tensors = layout::Difference(other.tensors, job.tensors);
  if (!tensors.empty()) {
    return absl::StrCat(
        "tensors differ between ranks (there: on the ranks "
        "that are attached): ",
        tensors);
  }
  if (job.optimizer != other.optimizer) {
    return Differs("optimizer", std::string(kernels::Name(job.optimizer)),
                   std::string(kernels::Name(other.optimizer)));
  }
  if (job.groups.size() != other.groups.size()) {
    return Differs("the number of param groups",
                   absl::StrCat(job.groups.size()),
                   absl::StrCat(other.groups.size()));
  }
  if (job.gradient_clipping != other.gradient_clipping) {
    return Differs("gradient_clipping", absl::StrCat(job.gradient_clipping),
                   absl::StrCat(other.gradient_clipping));
  }
  if (job.exchange != other.exchange) {
    return Differs("exchange", base::Quoted(job.exchange),
                   base::Quoted(other.exchange));
  }
  if (job.coordinator != other.coordinator) {
    return Differs("coordinator", base::Quoted(job.coordinator),
                   base::Quoted(other.coordinator));
  }
  if (job.load != other.load) {
    return Differs("load", base::Quoted(job.load), base::Quoted(other.load));
  }
  if (job.bucket_bytes != other.bucket_bytes) {
    return Differs("bucket_bytes", absl::StrCat(job.bucket_bytes),
                   absl::StrCat(other.bucket_bytes));
  }
  if (job.hold != other.hold) {
    const auto name = [](absl::Duration hold) {
      return hold == absl::ZeroDuration() ? "the daemon's default"
                                          : absl::FormatDuration(hold);
    };
    return Differs("hold", name(job.hold), name(other.hold));
  }
  return "";
}

std::string GroupDifference(const JobSpec& job, const JobSpec& other) {
  const auto here = Values(job);
  const auto there = Values(other);
  for (size_t i = 0; i < std::min(here.size(), there.size()); ++i) {
    const proto::GroupField* field = proto::FirstDifference(here[i], there[i]);
    if (field == nullptr) continue;
    return Differs(absl::StrCat("param group ", i, ": ", field->name),
                   absl::StrCat(here[i].*field->value),
                   absl::StrCat(there[i].*field->value));
  }
  return "";
}

uint64_t LeastBytes(const JobSpec& spec, int local_world_size) {
  const auto policy = layout::ParsePolicy(spec.exchange);
  const bool gathers = policy.ok() && policy->gathers_weights;
  double bytes = 0;  // no overflow, and precise enough for a bound
  for (const layout::TensorSpec& tensor : spec.tensors) {
    double size = kernels::SizeOf(tensor.dtype);
    // Negative dimensions: Layout::Create has the words for them.
    for (const int64_t d : tensor.shape) size *= std::max<int64_t>(d, 0);
    // A part of the weights, where they are gathered; how much is not known.
    const int copies = gathers ? 0 : 1;
    bytes += size * (tensor.trainable ? copies + local_world_size : copies);
  }
  return bytes < 1e18 ? static_cast<uint64_t>(bytes) : uint64_t{1} << 60;
}

absl::Status ForMemory(absl::Status status) {
  status.SetPayload(kForMemory, absl::Cord());
  return status;
}

bool IsForMemory(const absl::Status& status) {
  return status.GetPayload(kForMemory).has_value();
}

absl::Status ForDraining(absl::Status status) {
  status.SetPayload(kForDraining, absl::Cord());
  return status;
}

bool IsForDraining(const absl::Status& status) {
  return status.GetPayload(kForDraining).has_value();
}

uint64_t ResidentBytes(const layout::ExchangePolicy& policy,
                       const layout::Layout& layout) {
  const uint64_t all = layout.weights_bytes();
  return !policy.gathers_weights || policy.resident_bytes == 0
             ? all
             : std::min(all, policy.resident_bytes);
}

MemoryNeed EstimateMemory(const JobSpec& spec, const layout::Layout& layout,
                          NodeRank node, int compute_threads,
                          bool keeps_snapshots, bool keeps_replicas) {
  const uint64_t workers = layout.topology().local_world_size;
  const uint64_t moments =
      kernels::StateArrays(spec.optimizer, AnyMomentum(spec.groups));
  MemoryNeed need;
  need.gradients = workers * layout.gradients_bytes();
  need.weights = layout.weights_bytes();
  int num_units = 0;
  if (const auto policy = layout::ParsePolicy(spec.exchange);
      policy.ok() && policy->gathers_weights) {
    const layout::GatherUnits units(layout);
    num_units = units.size();
    need.weights = ResidentBytes(*policy, layout);
    need.owned = units.owned_bytes(layout.topology().OwnerOf(node).value());
    const layout::ExchangePlan plan(*policy, layout);
    if (plan.quantizes_weights()) {
      // Encoded too, from the first step on.
      need.owned += plan.PerStep(layout, node).weights /
                    (layout.topology().num_owners() - 1);
    }
  }
  need.initial = node == NodeRank(0) ? layout.weights_bytes() : 0;
  need.control_blocks =
      workers * ipc::ControlBlockView::SizeBytes(
                    static_cast<int>(layout.buckets().size()),
                    static_cast<int>(spec.groups.size()), num_units);
  need.state = layout.state_elements(node) * 4 * (1 + moments + 1);
  // Refused before it comes here, if it is no policy.
  const auto policy = layout::ParsePolicy(spec.exchange);
  if (policy.ok() && layout::ExchangePlan(*policy, layout).feeds_back()) {
    for (const layout::Bucket& bucket : layout.buckets()) {
      need.residuals += 2 * sizeof(float) * bucket.scratch_elements;
    }
  }
  if (keeps_snapshots || keeps_replicas) {
    // Published weights are stored where they are not a cast of the masters.
    const bool has_published = policy.ok() && (policy->weights.quantizes() ||
                                               !policy->overrides.empty());
    const uint64_t arrays = 1 + moments + (has_published ? 1 : 0);
    const auto stored = [&](NodeRank of) {
      return StoredBytes(layout, of, arrays) + need.residuals / 2;
    };
    const auto frozen = [&](NodeRank of) {
      return FrozenBytes(layout, of, policy.ok() && policy->gathers_weights);
    };
    need.snapshot = stored(node);
    if (keeps_replicas) need.replicas = 2 * (need.snapshot + frozen(node));
    const NodeRank source = layout::ReplicaSource(layout.topology(), node);
    if (keeps_replicas && source != node) {
      need.replicas += 2 * (stored(source) + frozen(source));
    }
  }
  need.undo = compute_threads * layout.options().chunk_bytes * (1 + moments);
  return need;
}

}  // namespace ballast::session
