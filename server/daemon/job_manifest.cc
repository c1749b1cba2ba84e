#include "server/daemon/job_manifest.h"

#include "server/layout/layout.h"
#include "server/session/job_spec.h"

namespace ballast::daemon {

snapshot::Manifest MakeManifest(const session::LocalJob& job,
                                const layout::ExchangePlan& plan,
                                int num_moments, bool has_residuals) {
  const session::JobSpec& spec = job.spec();
  const layout::Layout& layout = job.layout();
  snapshot::Manifest manifest;
  manifest.job = spec.name;
  manifest.tenant = spec.tenant;
  manifest.uid = job.uid();
  manifest.num_nodes = layout.topology().num_nodes;
  manifest.local_world_size = layout.topology().local_world_size;
  manifest.exchange = spec.exchange;
  manifest.optimizer = spec.optimizer;
  manifest.num_moments = num_moments;
  manifest.groups = spec.groups;
  manifest.has_published = plan.quantizes_weights();
  manifest.has_residuals = has_residuals;
  for (const layout::TensorSpec& tensor : layout.tensors()) {
    manifest.tensors.push_back({tensor.name, tensor.shape, tensor.dtype,
                                tensor.trainable, tensor.group});
  }
  return manifest;
}

}  // namespace ballast::daemon
