#include "server/daemon/job_routes.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/ids.h"
#include "server/collective/parts.h"

namespace ballast::daemon {
namespace {

using transport::Algorithm;
using transport::Pattern;

v1::LinkCost ToProto(const transport::LinkCost& cost) {
  v1::LinkCost proto;
  proto.set_latency(cost.latency);
  proto.set_per_message(cost.per_message);
  proto.set_per_byte(cost.per_byte);
  proto.set_per_copied_byte(cost.per_copied_byte);
  return proto;
}

transport::LinkCost FromProto(const v1::LinkCost& proto) {
  return {proto.latency(), proto.per_message(), proto.per_byte(),
          proto.per_copied_byte()};
}

// Others than the forced one stand in where that one does not do (cost_model).
std::string CountsText(const transport::RoutedTransport::Counts& counts,
                       int64_t num_halved,
                       const std::optional<Algorithm>& forced) {
  std::vector<std::string> texts;
  bool has_others = false;
  for (int i = 0; i < transport::kNumAlgorithms; ++i) {
    const auto algorithm = static_cast<Algorithm>(i);
    const int64_t count =
        algorithm == Algorithm::kHalving ? num_halved : counts[i];
    if (count == 0) continue;
    texts.push_back(absl::StrCat(count, " ", std::string(Name(algorithm))));
    has_others = has_others || algorithm != forced;
  }
  if (texts.empty()) return "none";
  return absl::StrCat(
      absl::StrJoin(texts, ", "),
      forced.has_value() && has_others
          ? absl::StrCat(" where ", std::string(Name(*forced)), " does not do")
          : "");
}

}  // namespace

void JobRoutes::Measure(transport::Transport* transport,
                        absl::AnyInvocable<void(absl::Status) &&> done) {
  inner_ = transport;
  if (num_nodes_ < 3) return std::move(done)(absl::OkStatus());
  auto shared = std::make_shared<decltype(done)>(std::move(done));  // two ways
  auto probe = transport::LinkProbe::Start(
      {.transport = transport,
       .clock = clock_,
       .num_nodes = num_nodes_,
       .job = job_key_,
       .phase = collective::kProbePhase},
      [this, shared](absl::StatusOr<transport::LinkCost> cost) {
        probe_.reset();  // its buffers are of no more use
        if (cost.ok()) measured_ = ToProto(*cost);
        std::move (*shared)(cost.status());
      });
  if (!probe.ok()) return std::move(*shared)(probe.status());
  probe_ = *std::move(probe);
}

void JobRoutes::Open(const v1::LinkCost& cost) {
  cost_ = FromProto(cost);
  const auto choice = [this](Pattern pattern, int num_nodes,
                             uint64_t part_bytes) {
    const auto& forced =
        pattern == Pattern::kGather ? algorithms_.gather : algorithms_.reduce;
    if (pattern == Pattern::kDeliver) {
      return ChooseReduction(cost_, num_nodes, part_bytes, false, forced);
    }
    return Choose(cost_, pattern, num_nodes, part_bytes, forced);
  };
  routed_ =
      std::make_unique<transport::RoutedTransport>(inner_, num_nodes_, choice);
  num_halved_ = 0;
}

void JobRoutes::Close() {
  routed_.reset();
  probe_.reset();
  inner_ = nullptr;
}

bool JobRoutes::Halves(uint64_t part_bytes) {
  const bool halves =
      ChooseReduction(cost_, num_nodes_, part_bytes, true,
                      algorithms_.reduce) == Algorithm::kHalving;
  if (halves) ++num_halved_;
  return halves;
}

std::string JobRoutes::Describe() const {
  if (routed_ == nullptr) return "";
  std::string text;
  if (!(cost_ == transport::LinkCost())) {
    text = absl::StrCat(ToText(cost_), "; ");
  }
  return absl::StrCat(
      text, "gather: ",
      CountsText(routed_->counts(Pattern::kGather), 0, algorithms_.gather),
      "; reduce: ",
      CountsText(routed_->counts(Pattern::kDeliver), num_halved_,
                 algorithms_.reduce));
}

}  // namespace ballast::daemon
