// Keeps a node's published weights right in delta mode: watches the tasks that
// work on them, serves sound chunks to other nodes, and heals damaged ones
// before the step goes on.
//
//   a task finds      whose        wanted            then
//   its copy changed  this node's  what it wrote     the task runs again
//   its copy changed, another's    the step's        the step goes on: the
//   another reference              version, of its   owner's bits are the
//   or result                      owner first, of   task's result
//                                  others only what
//                                  the owner told
//   nothing, but the  another's    the same          the same
//   difference is gone
//
// Only this chunk's batch waits meanwhile; everything else goes on.
//
// Threading: control thread only. Nothing is allocated unless something is
// damaged.
// Ownership: one per collective (generation); what it is given outlives it.
#ifndef SERVER_COLLECTIVE_CHUNK_KEEPER_H_
#define SERVER_COLLECTIVE_CHUNK_KEEPER_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/collective/chunk_healer.h"
#include "server/collective/chunk_source.h"
#include "server/collective/chunk_stages.h"
#include "server/collective/comparison.h"
#include "server/collective/context.h"

namespace ballast::collective {

class ChunkKeeper final : public ChunkWatch {
 public:
  // `on_compared`: StartComparison has ended. Needs parts.pulls, executor and
  // published.
  ChunkKeeper(const Context* context,
              absl::AnyInvocable<void(const absl::Status&)> on_compared)
      : context_(context),
        stages_(context->parts.published),
        source_(context, &stages_),
        healer_(context),
        comparison_(context, &healer_, std::move(on_compared)) {}

  void OnSubmitted(const ChunkId& id) override;
  void OnSound(const ChunkId& id) override;
  void OnDamaged(
      const Damage& damage,
      absl::AnyInvocable<void(absl::StatusOr<AfterHealing>) &&> then) override;

  void StartComparison() { comparison_.Start(); }
  // Nothing is asked, answered, written or reported any more.
  void Stop();

  std::string WaitingFor() const { return healer_.WaitingFor(); }
  uint64_t bytes_sent() const { return source_.bytes_sent(); }
  uint64_t bytes_received() const {
    return healer_.bytes_received() + comparison_.bytes_received();
  }

 private:
  const Context* const context_;
  ChunkStages stages_;
  ChunkSource source_;
  ChunkHealer healer_;
  Comparison comparison_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CHUNK_KEEPER_H_
