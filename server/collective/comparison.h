// All chunks of this node's published weights against what their owners have,
// by checksum and version (chunk_source.h, kPullMarks); those that differ are
// healed with the owner's bits. For when the nodes' digests of a version
// differ: 16 bytes a chunk, owner after owner, bucket after bucket.
//
// The owner is right about its shard: the next differences that it encodes
// start from its bits. Of partition groups the first one's is, for all groups'
// owners and members. A chunk that differs from its owner's in memory only
// (its note agrees) is found by the Verifier, before the vote.
//
// Threading: control thread only; between two steps' publishing.
#ifndef SERVER_COLLECTIVE_COMPARISON_H_
#define SERVER_COLLECTIVE_COMPARISON_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/collective/chunk_healer.h"
#include "server/collective/context.h"
#include "server/collective/published_chunks.h"
#include "server/transport/pulls.h"

namespace ballast::collective {

class Comparison {
 public:
  // `done` once per Start, unless cancelled; not from inside it. What it is
  // given outlives it.
  Comparison(const Context* context, ChunkHealer* healer,
             absl::AnyInvocable<void(const absl::Status&)> done)
      : context_(context), healer_(healer), done_(std::move(done)) {}
  ~Comparison() { Cancel(); }

  // From the beginning, if one is under way.
  void Start();
  void Cancel();

  uint64_t bytes_received() const { return bytes_received_; }

 private:
  void AskNext();
  void OnMarks(const absl::Status& status);
  void Compare(const ChunkId& id, const PublishedChunks::Entry& theirs);
  void OnHealed(const absl::Status& status);
  void End(const absl::Status& status);

  const Context* const context_;
  ChunkHealer* const healer_;
  absl::AnyInvocable<void(const absl::Status&)> done_;
  size_t bucket_ = 0;  // the next to ask about
  int owner_ = 0;      // and whom
  std::vector<PublishedChunks::Entry> marks_;
  transport::PullId pull_;
  base::TimerId timer_ = 0;  // of the pull, or to begin
  int num_healing_ = 0;
  absl::Status failure_;  // of the chunks being healed, the first
  uint64_t bytes_received_ = 0;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_COMPARISON_H_
