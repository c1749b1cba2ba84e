// Gets the bits of damaged chunks from other nodes (chunk_source.h), verifies
// them and writes them over what this node has.
//
//   Heal ─▶ ask the first node ─▶ right version, right checksum? ─▶ written
//               ▲ refused, gone, silent for `pull_timeout`, wrong │
//               └──────────── the next one ◀──────────────────────┘ none left:
//                                                                  DataLoss
//
// Those that were silent are asked once more before the DataLoss.
//
// Of a chunk of this node's own the version and checksum that it wrote are
// wanted, from whoever has them, in rank order. (If the bits of another node
// are the ones here, what was damaged is this node's own note of them.) Of
// another owner's chunk the wanted version is asked of its owner first, and of
// the others the bits that the owner told.
//
// Threading: control thread only. At most kMaxHeals at a time, each with
// memory for one chunk; the others wait.
// Errors: DataLoss, with what was found first and what each node answered.
#ifndef SERVER_COLLECTIVE_CHUNK_HEALER_H_
#define SERVER_COLLECTIVE_CHUNK_HEALER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/collective/context.h"
#include "server/collective/published_chunks.h"
#include "server/transport/pulls.h"

namespace ballast::collective {

class ChunkHealer {
 public:
  static constexpr size_t kMaxHeals = 8;

  struct Wanted {
    ChunkId id;
    WeightVersion version;
    // None: whatever it has who is asked. The chunk's owner knows best: it is
    // not compared with what it has.
    std::optional<uint64_t> checksum = {};
    HealKind kind = HealKind::kMember;
  };
  // Never called from inside a call.
  using Done = absl::AnyInvocable<void(const absl::Status&) &&>;

  explicit ChunkHealer(const Context* context)
      : context_(context), alive_(std::make_shared<int>(0)) {}
  ~ChunkHealer() { Cancel(); }

  // Nobody else touches the chunk until `done`. `why` is what was found.
  void Heal(const Wanted& wanted, const absl::Status& why, Done done);
  // No `done` is called any more, no byte written.
  void Cancel();

  // What is being healed, and who is asked; empty if nothing is.
  std::string WaitingFor() const;

  uint64_t bytes_received() const { return bytes_received_; }

 private:
  struct Case {
    Wanted wanted;
    absl::Status why;
    Done done;
    uint64_t own_checksum = 0;  // of what is here now
    std::vector<NodeRank> nodes;
    size_t next = 0;               // of them
    std::vector<NodeRank> silent;  // in the first round
    bool asked_again = false;      // those
    std::string answers;
    std::vector<std::byte> copy;  // while it is open
    transport::PullId pull;
    base::TimerId timer = 0;
  };
  using Cases = std::list<Case>;

  void OpenSome();
  void AskNext(Cases::iterator one);
  void OnAnswer(Cases::iterator one, const absl::Status& status);
  absl::Status Check(const Case& one) const;
  void GoOn(Cases::iterator one, const absl::Status& answer);
  void Write(Cases::iterator one);
  void End(Cases::iterator one, const absl::Status& status);

  const Context* const context_;
  std::deque<Case> waiting_;
  Cases open_;
  uint64_t bytes_received_ = 0;
  std::shared_ptr<int> alive_;  // weak in what is posted
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CHUNK_HEALER_H_
