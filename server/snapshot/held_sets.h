// Which replica a job goes on from: of what its nodes hold, the newest that is
// whole.
//
// Threading: pure functions; ListHeld blocks.
#ifndef SERVER_SNAPSHOT_HELD_SETS_H_
#define SERVER_SNAPSHOT_HELD_SETS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/base/ids.h"
#include "server/snapshot/files/held_files.h"

namespace ballast::snapshot {

// What one node holds of one replica.
struct HeldSet {
  int64_t step = 0;
  uint64_t checksum = 0;  // of the manifest: names the replica
  uint64_t manifest_bytes = 0;
  int num_shards = 0;
  std::vector<int> shards;  // ascending
  bool is_last = false;     // all nodes ended that life with it

  bool operator==(const HeldSet&) const = default;
};

// A file that was found damaged, or missing: `shard` of the node's copy, or its
// manifest (num_shards).
struct BadCopy {
  uint64_t checksum = 0;
  int shard = 0;
  NodeRank node;

  bool operator==(const BadCopy&) const = default;
};

struct HeldChoice {
  int64_t step = 0;
  uint64_t checksum = 0;
  uint64_t manifest_bytes = 0;
  // Who holds it, ascending, by shard; the last one is the manifest.
  std::vector<std::vector<NodeRank>> holders;

  int num_shards() const { return static_cast<int>(holders.size()) - 1; }
  // Every node that holds a part of it, ascending.
  std::vector<NodeRank> Nodes() const;
  bool operator==(const HeldChoice&) const = default;
};

// Which node of an earlier life a node was; `num_nodes` 0: of none.
struct Membership {
  int node = 0;
  int num_nodes = 0;
};

// The life of the job that held the newest set, whole or not.
struct EarlierLife {
  int64_t step = 0;  // of that set
  int num_nodes = 0;
  std::vector<int> nodes;  // of them, those that are here; ascending
  bool is_over = false;    // all of them have ended it

  // Whether those that are here may go on: nobody runs it any more, or they are
  // more than half, or exactly half with the lowest rank. Of others nobody can
  // say the same (DESIGN 6.9).
  bool HasMajority() const;
};

// Of the sets of `job`, those whose manifest can be read; newest first.
std::vector<HeldSet> ListHeld(HeldFiles& files, const std::string& job);

// By node rank. The newest step of which some node holds each file; of several
// replicas of a step the one with the smaller checksum. Sets that contradict
// each other or themselves (from peers) are left out.
std::optional<HeldChoice> ChooseHeld(
    std::span<const std::vector<HeldSet>> by_node,
    std::span<const BadCopy> bad);

// By node rank, as in ChooseHeld; nullopt: nobody holds anything.
std::optional<EarlierLife> FindEarlierLife(
    std::span<const std::vector<HeldSet>> by_node,
    std::span<const Membership> memberships);

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_HELD_SETS_H_
