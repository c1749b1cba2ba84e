#include "server/daemon/job_join.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/hyper_parameters.h"
#include "kernels/optimizer_name.h"
#include "server/base/names.h"

namespace ballast::daemon {
namespace {

constexpr size_t kMaxValueBytes = 200;  // of what goes into texts

// The shortest text that reads back to the same bits.
std::string Exact(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

std::string NameOf(const std::optional<transport::Algorithm>& algorithm) {
  return algorithm.has_value() ? std::string(Name(*algorithm)) : "auto";
}

void Add(const char* name, std::string value, v1::Join* join,
         std::string canonical = "") {
  v1::JobOption* const option = join->add_options();
  option->set_name(name);
  option->set_value(std::move(value));
  option->set_canonical(std::move(canonical));
}

}  // namespace

v1::Join MakeJoin(const session::JobSpec& spec, const layout::Layout& layout,
                  const layout::ExchangePolicy& policy,
                  absl::Duration default_hold, const Algorithms& algorithms,
                  bool keeps_snapshots, bool keeps_replicas) {
  v1::Join join;
  join.set_num_nodes(layout.topology().num_nodes);
  join.set_local_world_size(layout.topology().local_world_size);
  join.set_layout_digest(layout.digest());
  join.set_model_digest(layout.model_digest());
  Add("tenant", spec.tenant, &join);
  Add("optimizer", std::string(kernels::Name(spec.optimizer)), &join);
  const bool has_momentum =
      std::any_of(spec.groups.begin(), spec.groups.end(),
                  [](const auto& group) { return group.momentum != 0; });
  Add("use of momentum", has_momentum ? "yes" : "no", &join);
  Add("gradient_clipping", Exact(spec.gradient_clipping), &join);
  Add("exchange", base::Quoted(spec.exchange.substr(0, kMaxValueBytes)), &join,
      layout::PolicyDigest(policy));
  Add("bucket_bytes", absl::StrCat(layout.options().bucket_bytes), &join);
  Add("compute.chunk_bytes", absl::StrCat(layout.options().chunk_bytes), &join);
  const bool is_default = spec.hold == absl::ZeroDuration();
  const std::string hold =
      absl::FormatDuration(is_default ? default_hold : spec.hold);
  Add("hold",
      is_default ? absl::StrCat(hold, " (the daemon's jobs.hold)") : hold,
      &join, hold);
  Add("transport.gather", NameOf(algorithms.gather), &join);
  Add("transport.reduce", NameOf(algorithms.reduce), &join);
  Add("snapshots", keeps_snapshots ? "on" : "off", &join);
  Add("replicas",
      !keeps_replicas   ? "off"
      : spec.asks_nodes ? "on"
                        : "on, and none is gone on from",
      &join);
  const auto& stored = spec.stored;
  Add("stored state",
      stored.has_value()
          ? absl::StrCat(base::Quoted(stored->path), " of step ", stored->step)
          : "none",
      &join, stored.has_value() ? absl::StrCat(stored->checksum) : "none");
  return join;
}

}  // namespace ballast::daemon
