// Cluster's side that looks on: what workers see and read, who owns what, and
// how they end.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "server/layout/metering.h"
#include "tests/sim/cluster.h"

namespace ballast::sim {

void Cluster::OnViolation(const std::string& what) {
  result_.violations.push_back(what);
}

void Cluster::OnAllPushed(WorkerId id, int64_t step) {
  corruption_.OnAllPushed(id, step);
}

namespace {

// A node that came back did not see what its former life left over.
bool MayForget(const Scenario& scenario) {
  return std::ranges::any_of(scenario.faults, [](const Fault& fault) {
    switch (fault.kind) {
      case Fault::Kind::kNan:
      case Fault::Kind::kInfinity:
      case Fault::Kind::kValue:
      case Fault::Kind::kCrash:
      case Fault::Kind::kSlow:
        return false;
      default:
        return true;
    }
  });
}

}  // namespace

// What was not measured is NaN, never 0.
void Cluster::CheckQuality(WorkerId id, int64_t version, bool is_known,
                           const worker::StepResult& record) {
  const ReferenceModel::StepQuality& wanted = reference_.Quality(version);
  const worker::PathQuality* const told[] = {&record.gradients,
                                             &record.weights};
  for (const layout::Path path : layout::kPaths) {
    const auto p = static_cast<size_t>(path);
    const ErrorModel::Quality& quality = wanted.paths[p];
    const double error = told[p]->relative_error;
    const bool is_right =
        quality.sampled == 0
            ? std::isnan(error) && std::isnan(told[p]->clipped_share)
            : error == quality.relative_error && told[p]->clipped_share >= 0;
    if ((is_known && (!is_right || told[p]->sampled != quality.sampled)) ||
        told[p]->num_wider != wanted.num_wider[p]) {
      OnViolation(absl::StrFormat(
          "I21: rank %d, the record of step %d says of %s: %d sampled, error "
          "%.17g, %d wider instead of %d, %.17g, %d",
          id.rank, version, layout::Name(path), told[p]->sampled, error,
          told[p]->num_wider, quality.sampled, quality.relative_error,
          wanted.num_wider[p]));
    }
  }
  const double left = record.gradients.residual_norm;
  const auto& norms = wanted.residual_norms;
  const bool is_told = !std::isnan(left);
  const bool may_lack = norms.empty() || MayForget(scenario_);
  const double norm = norms.empty() ? 0 : norms[id.rank / scenario_.workers];
  if (is_told ? norms.empty() || std::abs(left - norm) > 1e-12 * norm
              : !may_lack) {
    OnViolation(absl::StrFormat(
        "I12: rank %d, the record of step %d says a residual of %.17g instead "
        "of %.17g",
        id.rank, version, left, norm));
  }
}

void Cluster::OnVersion(WorkerId id, int64_t version, uint64_t hash,
                        const worker::StepResult* record) {
  world_.Note(
      absl::StrFormat("rank %d version %d weights %x", id.rank, version, hash));
  const int64_t last = last_version_[id.rank];
  last_version_[id.rank] = version;
  const bool is_next = version == last + 1 || (id.life > 0 && version == last);
  if (!is_next) {
    OnViolation(absl::StrCat("I19: rank ", id.rank, " sees version ", version,
                             " after ", last));
  }
  if (hash != reference_.WeightsHash(version)) {
    OnViolation(absl::StrCat("I25: rank ", id.rank, " version ", version,
                             " is not the reference model's"));
  }
  if (static_cast<int64_t>(result_.weights.size()) == version) {
    result_.weights.push_back(hash);
    ActOnVersion(version);
  } else if (version < static_cast<int64_t>(result_.weights.size()) &&
             result_.weights[version] != hash) {
    OnViolation(absl::StrCat("I25: rank ", id.rank, " version ", version,
                             " differs from another rank's"));
  }
  if (record != nullptr) {
    const bool is_skipped = reference_.WasSkipped(version);
    if (record->step != version || record->skipped != is_skipped ||
        record->weight_version != version ||
        (!is_skipped && record->grad_norm != reference_.GradNorm(version))) {
      OnViolation(absl::StrFormat(
          "I15: rank %d, the record of step %d says step %d, skipped %d, norm "
          "%.17g instead of %.17g",
          id.rank, version, record->step, record->skipped, record->grad_norm,
          reference_.GradNorm(version)));
    }
    // What an earlier life sent to make the stored weights, this one does not
    // know.
    const bool is_known =
        scenario_.first_version == 0 || version > scenario_.first_version + 1;
    if ((is_known &&
         record->relative_error != reference_.RelativeError(version)) ||
        record->fallbacks < reference_.Fallbacks(version) ||
        (result_.heals == 0 &&  // they count too, on the node that healed
         record->fallbacks != reference_.Fallbacks(version))) {
      OnViolation(absl::StrFormat(
          "I21: rank %d, the record of step %d says a relative error of %.17g "
          "and %d fallbacks instead of %.17g and %d",
          id.rank, version, record->relative_error, record->fallbacks,
          reference_.RelativeError(version), reference_.Fallbacks(version)));
    }
    CheckQuality(id, version, is_known, *record);
  }
  const int node = id.rank / scenario_.workers;
  // With overlap the next gradient may be there already.
  const auto is_bad = [this](int64_t step) {
    return reference_.WasSkipped(step) || scenario_.loads.contains(step);
  };
  const bool is_next_bad =
      scenario_.overlap && version < scenario_.steps && is_bad(version + 1);
  if (version > scenario_.first_version && !is_bad(version) && !is_next_bad &&
      ones_checked_.insert({node, version}).second) {
    CheckOnes(node, version);
  }
  if (!is_ownership_checked_) CheckOwnership();
  CheckResident();
}

// What is gathered never takes more than it may, and the way back is known.
void Cluster::CheckResident() {
  for (size_t n = 0; n < daemons_.size(); ++n) {
    if (daemons_[n] == nullptr) continue;
    const daemon::JobRuntime* const runtime = daemons_[n]->node->Find(kJobName);
    if (runtime == nullptr || runtime->gathered() == nullptr) continue;
    const v1::GatherStatus status = runtime->gathered()->Status();
    if (status.limit_bytes() > 0 &&
        status.resident_bytes() > status.limit_bytes()) {
      OnViolation(absl::StrCat("node ", n, " holds ", status.resident_bytes(),
                               " bytes of weights, ", status.limit_bytes(),
                               " are allowed"));
    }
  }
}

void Cluster::OnRead(WorkerId id, int64_t version, const layout::Piece& piece,
                     std::span<const std::byte> bytes) {
  ++result_.reads;
  const std::span<const std::byte> expected =
      reference_.Weights(version, piece.tensor)
          .subspan(bytes.size() / piece.size() * piece.begin, bytes.size());
  if (std::equal(bytes.begin(), bytes.end(), expected.begin())) return;
  OnViolation(absl::StrCat("I1: rank ", id.rank, " was told of version ",
                           version, " of tensor ", piece.tensor.value(),
                           " and reads something else"));
}

void Cluster::CheckOwnership() {
  if (daemons_[0] == nullptr) return;
  const daemon::JobRuntime* const runtime = daemons_[0]->node->Find(kJobName);
  if (runtime == nullptr) return;
  is_ownership_checked_ = true;
  const layout::Layout& layout = runtime->job().layout();
  std::vector<std::vector<int>> owners;
  for (const layout::TensorPlace& place : layout.places()) {
    owners.emplace_back(place.num_elements);
  }
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      for (const layout::Piece& piece : shard.pieces) {
        for (int64_t i = piece.begin; i < piece.end; ++i) {
          ++owners[piece.tensor.value()][i];
        }
      }
    }
  }
  for (size_t t = 0; t < owners.size(); ++t) {
    const int expected = layout.tensors()[t].trainable ? 1 : 0;
    for (const int count : owners[t]) {
      if (count == expected) continue;
      OnViolation(absl::StrCat("I14: an element of \"",
                               layout.tensors()[t].name, "\" has ", count,
                               " owners"));
      break;
    }
  }
}

// Until a worker of the node that has not seen the version pushes again, the
// node's reduced gradient is that of the version.
void Cluster::CheckOnes(int node, int64_t version) {
  if (daemons_[node] == nullptr) return;
  const daemon::JobRuntime* const runtime =
      daemons_[node]->node->Find(kJobName);
  if (runtime == nullptr) return;
  if (runtime->engine().counts().strays != 0) {
    OnViolation(absl::StrCat("I19: node ", node, " has ",
                             runtime->engine().counts().strays,
                             " stray events"));
  }
  const layout::Layout& layout = runtime->job().layout();
  const std::span<const float> gradient = runtime->state().gradient();
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const layout::Piece& piece :
         layout.shard(bucket.id, NodeRank(node)).pieces) {
      if (!absl::StartsWith(layout.tensor(piece.tensor).name, "ones")) {
        continue;
      }
      for (int64_t i = 0; i < piece.size(); ++i) {
        const float one = gradient[piece.state_offset + i];
        if (absl::StartsWith(scenario_.exchange, "exact")
                ? one == 1.0f
                : std::fabs(one - 1.0f) <= 2e-6f) {
          continue;
        }
        OnViolation(absl::StrCat("I6: the mean of ones is ",
                                 gradient[piece.state_offset + i],
                                 " at version ", version));
        return;
      }
    }
  }
}

bool Cluster::IsExpected(const absl::Status& outcome) const {
  const std::vector<std::string> texts =
      absl::StrSplit(scenario_.expect_failure, " or ");
  return std::any_of(texts.begin(), texts.end(), [&](const std::string& text) {
    return absl::StrContains(std::string(outcome.message()), text);
  });
}

void Cluster::CheckEnds() {
  if (corruption_.num_waiting() > 0) {
    OnViolation(
        absl::StrCat(corruption_.num_waiting(), " bits have not flipped"));
  }
  const int missed = corruption_.num_missed();
  result_.faults -= missed;
  result_.faults_by_kind[static_cast<size_t>(Fault::Kind::kCorrupt)] -= missed;
  for (int rank = 0; rank < scenario_.world_size(); ++rank) {
    const SimWorker* const worker = workers_[rank].get();
    if (worker == nullptr) continue;
    result_.aborts += worker->aborts();
    if (daemons_[rank / scenario_.workers] == nullptr) continue;
    const absl::Status& outcome = worker->outcome();
    if (scenario_.expect_failure.empty()) {
      if (!outcome.ok()) {
        OnViolation(
            absl::StrCat("rank ", rank, " ended with ", outcome.ToString()));
      } else if (last_version_[rank] != scenario_.steps) {
        OnViolation(absl::StrCat("rank ", rank, " ended at version ",
                                 last_version_[rank]));
      }
    } else if (!IsExpected(outcome)) {
      OnViolation(absl::StrCat("I23: rank ", rank, " ended with ",
                               outcome.ToString(), ", which does not say \"",
                               scenario_.expect_failure, "\""));
    }
  }
}

void Cluster::CheckLosses() {
  for (const Fault* const fault : losses_.Missed()) {
    OnViolation(absl::StrCat("there was no ", fault->what, " of ",
                             fault->is_node ? "node " : "rank ", fault->where,
                             " to lose"));
  }
}

}  // namespace ballast::sim
