#include "server/session/attach_rules.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/layout/policy.h"

namespace ballast::session {

absl::Status CheckRequest(const AttachRequest& request, const Limits& limits,
                          bool allow_many_nodes) {
  RETURN_IF_ERROR(CheckPlacement(request.placement, limits));
  if (request.placement.num_nodes() > 1 && !allow_many_nodes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "world_size ", request.placement.world_size,
        " is not local_world_size ", request.placement.local_world_size,
        ": a job of several nodes needs a daemon with listen.peer, which is "
        "off here"));
  }
  return CheckSpec(request.job, limits);
}

absl::Status CheckAgrees(const LocalJob& local, const AttachRequest& request) {
  const std::string name = base::Quoted(local.spec().name);
  const layout::Topology& topology = local.layout().topology();
  const Placement& placement = request.placement;
  if (placement.world_size != topology.world_size() ||
      placement.local_world_size != topology.local_world_size ||
      placement.node_rank != local.node()) {
    const std::string here = absl::StrCat(
        "world_size / local_world_size / node_rank are ", placement.world_size,
        " / ", placement.local_world_size, " / ", placement.node_rank.value(),
        " here, ", topology.world_size(), " / ", topology.local_world_size,
        " / ", local.node().value());
    if (local.num_attached() > 0 || !local.has_begun()) {
      return absl::InvalidArgumentError(absl::StrCat(
          here, " on the ranks of job ", name, " that are attached"));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        here, " in job ", name,
        ", which is held here for workers in the place of those that left: "
        "start them as they were, or wait until jobs.hold is over; a job goes "
        "on in another shape at once with replicas.every_steps, or, on one "
        "node, with snapshots.directory"));
  }
  std::string difference = Difference(local.spec(), request.job);
  if (difference.empty() && !local.has_begun()) {
    difference = GroupDifference(local.spec(), request.job);
  }
  if (!difference.empty()) return absl::InvalidArgumentError(difference);
  if (local.has_begun() && request.resume == Resume::kNever) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", name, " is held here, and resume=\"never\" does not go on ",
        "with it: end it, or take another name"));
  }
  if (local.has_begun() && !request.job.load.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", name, " is held here: it goes on as it is, and load=",
        base::Quoted(request.job.load),
        " would replace its state; end it, or leave load out"));
  }
  return absl::OkStatus();
}

absl::Status CheckRoom(const Limits& limits, uint64_t used, uint64_t size_bytes,
                       const std::string& name) {
  if (limits.max_job_bytes != 0 && size_bytes > limits.max_job_bytes) {
    return ForMemory(absl::ResourceExhaustedError(
        absl::StrCat("job ", base::Quoted(name), " needs at least ", size_bytes,
                     " bytes on this node, above limits.max_job_bytes = ",
                     limits.max_job_bytes, ": raise it")));
  }
  const uint64_t all = limits.max_total_bytes;
  if (all != 0 && size_bytes > all - std::min(used, all)) {
    return ForMemory(absl::ResourceExhaustedError(
        absl::StrCat("job ", base::Quoted(name), " needs at least ", size_bytes,
                     " bytes on this node; ", used,
                     " are in use of limits.max_total_bytes = ", all,
                     ": raise it, or end another job")));
  }
  return absl::OkStatus();
}

absl::StatusOr<layout::Layout> MakeLayout(const AttachRequest& request,
                                          uint64_t chunk_bytes,
                                          int max_tensors) {
  const Placement& placement = request.placement;
  layout::Options options;
  options.bucket_bytes = request.job.bucket_bytes;
  options.chunk_bytes = chunk_bytes;
  options.max_tensors = max_tensors;
  ASSIGN_OR_RETURN(const layout::ExchangePolicy policy,
                   layout::ParsePolicy(request.job.exchange));
  RETURN_IF_ERROR(layout::CheckNodes(policy, placement.num_nodes()));
  ASSIGN_OR_RETURN(layout::Layout layout,
                   layout::Layout::Create(
                       request.job.tensors,
                       {placement.num_nodes(), placement.local_world_size,
                        policy.partition_nodes},
                       static_cast<int>(request.job.groups.size()), options));
  if (layout.trainable_elements() == 0) {
    return absl::InvalidArgumentError(
        "no tensor of the job has an element to train");
  }
  return layout;
}

}  // namespace ballast::session
