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

// Of the sets of `job`, those whose manifest can be read; newest first.
std::vector<HeldSet> ListHeld(HeldFiles& files, const std::string& job);

// By node rank. The newest step of which some node holds each file; of several
// replicas of a step the one with the smaller checksum. Sets that contradict
// each other or themselves (from peers) are left out.
std::optional<HeldChoice> ChooseHeld(
    std::span<const std::vector<HeldSet>> by_node,
    std::span<const BadCopy> bad);

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_HELD_SETS_H_
