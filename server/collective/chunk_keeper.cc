#include "server/collective/chunk_keeper.h"

namespace ballast::collective {

void ChunkKeeper::OnSubmitted(const ChunkId& id) {
  stages_.Set(id, ChunkStage::kInWork);
}

void ChunkKeeper::OnSound(const ChunkId& id) {
  stages_.Set(id, ChunkStage::kQuiet);
  source_.OnStages();
}

void ChunkKeeper::OnDamaged(
    const Damage& damage,
    absl::AnyInvocable<void(absl::StatusOr<AfterHealing>) &&> then) {
  const ChunkId& id = damage.id;
  stages_.Set(id, ChunkStage::kDamaged);
  source_.OnStages();
  ChunkHealer::Wanted wanted{.id = id,
                             .version = WeightVersion(damage.step.value()),
                             .checksum = damage.told,
                             .kind = absl::IsNotFound(damage.why)
                                         ? HealKind::kRelink
                                         : HealKind::kMember};
  const bool is_own = id.owner.value() == context_->self();
  if (is_own) {
    const PublishedChunks::Entry& entry = context_->parts.published->entry(id);
    wanted.version = entry.version;
    wanted.checksum = entry.checksum;
    wanted.kind = HealKind::kOwner;
  }
  healer_.Heal(
      wanted, damage.why,
      [this, id, is_own,
       then = std::move(then)](const absl::Status& status) mutable {
        if (!status.ok()) return std::move(then)(status);
        OnSound(id);
        std::move(then)(is_own ? AfterHealing::kRunAgain : AfterHealing::kGoOn);
      });
}

void ChunkKeeper::Stop() {
  comparison_.Cancel();
  healer_.Cancel();
  source_.Close();
}

}  // namespace ballast::collective
