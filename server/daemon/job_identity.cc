#include "server/daemon/job_identity.h"

#include <algorithm>

namespace ballast::daemon {

bool AnyMomentum(std::span<const kernels::HyperParameters> groups) {
  return std::any_of(groups.begin(), groups.end(),
                     [](const auto& group) { return group.momentum != 0; });
}

snapshot::JobIdentity IdentityOf(const session::JobSpec& spec, uint32_t uid) {
  snapshot::JobIdentity identity;
  identity.tenant = spec.tenant;
  identity.uid = uid;
  identity.optimizer = spec.optimizer;
  identity.any_momentum = AnyMomentum(spec.groups);
  identity.num_groups = spec.groups.size();
  return identity;
}

}  // namespace ballast::daemon
