#include "server/daemon/job_weights.h"

#include <utility>
#include <vector>

#include "server/base/failpoint.h"
#include "server/base/status_macros.h"

namespace ballast::daemon {

using metrics::Family;

absl::StatusOr<std::unique_ptr<JobWeights>> JobWeights::Create(Parts parts) {
  auto weights = std::unique_ptr<JobWeights>(new JobWeights(std::move(parts)));
  const Parts& all = weights->parts_;
  session::LocalJob* const job = all.job;
  ASSIGN_OR_RETURN(weights->owned_, collective::OwnedWeights::Create(
                                        *all.collective, job->units()));
  weights->gathered_ = std::make_unique<collective::GatheredWeights>(
      collective::GatheredWeights::Parts{
          .owned = weights->owned_.get(),
          .segment = job->weights_buffer(),
          .pool = all.collective->pool,
          .limit_bytes = all.collective->plan->policy().resident_bytes,
          .observer = weights.get()});
  if (all.metrics != nullptr) {
    weights->pulled_ = all.metrics->counter(Family::kGatherBytes, {"pulled"});
    weights->served_ = all.metrics->counter(Family::kGatherBytes, {"served"});
    weights->held_ = all.metrics->counter(Family::kGathers, {"held"});
    weights->refused_ = all.metrics->counter(Family::kGathers, {"refused"});
    weights->waits_ = all.metrics->counter(Family::kGatherWaits);
    weights->resident_ = all.metrics->gauge(Family::kGatherResidentBytes);
  }
  // Borrowed for this call only.
  weights->parts_.collective = nullptr;
  return weights;
}

void JobWeights::TakeOver(bool is_updated) {
  owned_->Restore(is_updated);
  is_taken_over_ = true;
}

void JobWeights::AddTo(optimizer::Parts* parts) {
  parts->weights = owned_->raw_buckets();
  parts->weight_shifts = owned_->shifts();
}

void JobWeights::AddTo(snapshot::JobSnapshots::Parts* parts) {
  parts->gathers_weights = true;
  parts->weights = places();
  parts->encoded = this;
}

void JobWeights::AddTo(collective::Parts* parts) {
  parts->owned = owned_.get();
  parts->gathered = gathered_.get();
  if (initial_ != nullptr) parts->initial = initial_->bytes();
}

snapshot::WeightPlaces JobWeights::places() {
  std::vector<snapshot::WeightPlaces::Part> parts;
  for (int u = 0; u < owned_->units().size(); ++u) {
    parts.push_back(
        {owned_->units().unit(u).parts[owned_->self()].begin, owned_->Raw(u)});
  }
  return snapshot::WeightPlaces(std::move(parts));
}

void JobWeights::TakeInitial(bool is_loaded) {
  initial_ = parts_.job->TakeInitial();
  if (is_loaded) initial_.reset();
  if (initial_ != nullptr) owned_->CopyFrom(initial_->bytes());
}

void JobWeights::Begin(WeightVersion version) {
  initial_.reset();
  gathered_->OnAllPublished(version);
}

void JobWeights::OnWanted(LocalRank rank, int unit, uint64_t request) {
  gathered_->OnWanted(rank, unit, request);
  TellMetrics();
}

void JobWeights::OnCommit(absl::AnyInvocable<void() &&> carry_out) {
  gathered_->EndVersion();
  gathered_->WhenIdle(std::move(carry_out));
}

void JobWeights::OnPublished(BucketId bucket, WeightVersion version) {
  // Nobody gets the values any more that it began with.
  if (owned_->are_all_coded()) owned_->DropRaw();
  gathered_->OnPublished(bucket, version);
  TellMetrics();
}

void JobWeights::Suspend(absl::AnyInvocable<void() &&> when_idle) {
  gathered_->Suspend();
  gathered_->WhenIdle(std::move(when_idle));
}

void JobWeights::GoOn(WeightVersion version, bool is_published) {
  if (std::exchange(is_taken_over_, false)) RestoreHeld(version);
  gathered_->Resume(version, is_published);
  TellMetrics();
}

// A unit that a control block shows as held is whole: it says otherwise before
// anything else is written there. What it says of an older version was written
// before a commit that is carried out now.
void JobWeights::RestoreHeld(WeightVersion version) {
  const layout::GatherUnits& units = owned_->units();
  parts_.job->RestoreHeld([&](LocalRank rank, int unit, uint64_t request,
                              WeightVersion held) {
    const WeightVersion now = units.is_frozen(unit) ? WeightVersion() : version;
    return held == now && gathered_->Adopt(rank, unit, request, held);
  });
  gathered_->DiscardRest();
}

void JobWeights::Stop(absl::AnyInvocable<void() &&> when_idle) {
  gathered_->Stop();
  gathered_->WhenIdle(std::move(when_idle));
}

v1::GatherStatus JobWeights::Status() const {
  const collective::GatheredWeights::Counts counts = gathered_->counts();
  v1::GatherStatus status;
  status.set_resident_bytes(counts.resident_bytes);
  status.set_limit_bytes(counts.limit_bytes);
  status.set_units(owned_->units().size());
  status.set_units_held(counts.num_held);
  status.set_units_gathering(counts.num_gathering);
  status.set_gathers(counts.gathers);
  status.set_refusals(counts.refusals);
  status.set_waits(counts.waits);
  status.set_payload_pulled(counts.payload_pulled);
  status.set_payload_served(counts.payload_served);
  status.set_waiting_for(WaitingFor());
  return status;
}

uint64_t JobWeights::size_bytes() const {
  return owned_->size_bytes() + gathered_->totals().resident_bytes;
}

std::string JobWeights::WaitingFor() const { return gathered_->WaitingFor(); }

void JobWeights::OnHeld(LocalRank rank, int unit, uint64_t request,
                        WeightVersion version) {
  parts_.job->StoreHeld(rank, unit, request, proto::HeldState::kHeld, version);
  BALLAST_FAILPOINT("daemon.unit_held");
  TellMetrics();
}

void JobWeights::OnNotHeld(LocalRank rank, int unit, uint64_t request) {
  parts_.job->StoreHeld(rank, unit, request, proto::HeldState::kNone, {});
  BALLAST_FAILPOINT("daemon.unit_not_held");
}

void JobWeights::OnRefused(LocalRank rank, int unit, uint64_t request,
                           const absl::Status& why) {
  parts_.job->Refuse(rank, unit, request, why);
  TellMetrics();
}

void JobWeights::OnGatherFailed(const absl::Status& why) {
  parts_.on_failed(why);
}

void JobWeights::TellMetrics() {
  if (resident_ == nullptr) return;
  const collective::GatheredWeights::Counts now = gathered_->totals();
  const auto add = [](metrics::Counter* counter, uint64_t then, uint64_t now) {
    counter->Increment(static_cast<double>(now - then));
  };
  add(pulled_, told_.payload_pulled, now.payload_pulled);
  add(served_, told_.payload_served, now.payload_served);
  add(held_, told_.gathers, now.gathers);
  add(refused_, told_.refusals, now.refusals);
  add(waits_, told_.waits, now.waits);
  resident_->Set(static_cast<double>(now.resident_bytes));
  told_ = now;
}

}  // namespace ballast::daemon
