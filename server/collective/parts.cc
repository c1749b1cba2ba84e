#include "server/collective/parts.h"

#include "absl/strings/str_cat.h"

namespace ballast::collective {

absl::Status CheckParts(const Parts& parts) {
  const layout::Layout& layout = *parts.layout;
  const layout::Topology& topology = layout.topology();
  if (parts.gradients.size() !=
      static_cast<size_t>(topology.local_world_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat(parts.gradients.size(), " gradient segments for ",
                     topology.local_world_size, " local ranks"));
  }
  for (size_t i = 0; i < parts.gradients.size(); ++i) {
    if (parts.gradients[i].size() < layout.gradients_bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the gradient segment of local rank ", i, " has ",
                       parts.gradients[i].size(), " of ",
                       layout.gradients_bytes(), " bytes"));
    }
  }
  if (parts.weights.size() < layout.weights_bytes() ||
      static_cast<int64_t>(parts.state_gradient.size()) <
          layout.state_elements(parts.node)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "weights of ", parts.weights.size(), " bytes and a state gradient of ",
        parts.state_gradient.size(), " elements; the layout has ",
        layout.weights_bytes(), " and ", layout.state_elements(parts.node)));
  }
  if (parts.plan != nullptr && parts.plan->quantizes_weights() &&
      static_cast<int64_t>(parts.master.size()) <
          layout.state_elements(parts.node)) {
    return absl::InvalidArgumentError(
        absl::StrCat("masters of ", parts.master.size(),
                     " elements for quantized weights; the layout has ",
                     layout.state_elements(parts.node)));
  }
  const bool gathers = parts.gathered != nullptr;
  if (gathers != (parts.owned != nullptr) ||
      (gathers && parts.plan != nullptr && parts.plan->codes_deltas())) {
    return absl::InvalidArgumentError(
        "weights that are gathered need owned parts, and no deltas");
  }
  if (parts.plan != nullptr && parts.plan->codes_deltas() &&
      parts.published == nullptr) {
    return absl::InvalidArgumentError("deltas of weights, and no checksums");
  }
  if (parts.pulls != nullptr && parts.executor == nullptr) {
    return absl::InvalidArgumentError("pulls, and no executor");
  }
  if (parts.plan != nullptr && parts.plan->feeds_back() &&
      parts.residuals == nullptr) {
    return absl::InvalidArgumentError("error feedback, and no residuals");
  }
  if (parts.buckets_in_flight < 1 || parts.batch_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "buckets_in_flight is ", parts.buckets_in_flight, ", batch_bytes ",
        parts.batch_bytes, "; both are at least one"));
  }
  if (topology.num_nodes > 1 && parts.transport == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(topology.num_nodes, " nodes and no transport"));
  }
  return absl::OkStatus();
}

}  // namespace ballast::collective
