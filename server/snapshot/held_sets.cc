#include "server/snapshot/held_sets.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/manifest.h"
#include "server/snapshot/files/snapshot_reader.h"

namespace ballast::snapshot {
namespace {

bool IsPossible(const HeldSet& set) {
  return set.step >= 0 && set.num_shards >= 1 && set.num_shards <= kMaxNodes &&
         set.manifest_bytes > 0 && set.manifest_bytes <= kMaxManifestBytes &&
         std::ranges::all_of(set.shards, [&](int shard) {
           return shard >= 0 && shard < set.num_shards;
         });
}

}  // namespace

std::vector<NodeRank> HeldChoice::Nodes() const {
  std::set<NodeRank> nodes;
  for (int shard = 0; shard < num_shards(); ++shard) {
    nodes.insert(holders[shard].begin(), holders[shard].end());
  }
  return {nodes.begin(), nodes.end()};
}

std::vector<HeldSet> ListHeld(HeldFiles& files, const std::string& job) {
  std::vector<HeldSet> sets;
  const auto entries = files.List(job);
  if (!entries.ok()) return sets;
  for (const DirectoryEntry& entry : *entries) {
    if (!IsStepName(entry.name)) continue;
    const std::string path = absl::StrCat(job, "/", entry.name);
    HeldSet set;
    const auto manifest = ReadManifest(files, path, &set.checksum);
    if (!manifest.ok()) continue;
    set.step = manifest->step;
    set.num_shards = manifest->num_nodes;
    set.is_last = set.step == files.last_step();
    set.manifest_bytes =
        files.Find(absl::StrCat(path, "/", kManifestName))->size_bytes();
    for (int shard = 0; shard < set.num_shards; ++shard) {
      const std::string name = ShardName(shard, set.num_shards);
      if (files.Find(absl::StrCat(path, "/", name)) != nullptr) {
        set.shards.push_back(shard);
      }
    }
    sets.push_back(std::move(set));
  }
  std::ranges::reverse(sets);  // names are in the order of steps
  return sets;
}

std::optional<HeldChoice> ChooseHeld(
    std::span<const std::vector<HeldSet>> by_node,
    std::span<const BadCopy> bad) {
  // What names a replica: all nodes that hold it must say the same.
  using Key = std::tuple<int64_t, uint64_t, uint64_t, int>;
  std::map<Key, HeldChoice> choices;
  for (size_t n = 0; n < by_node.size(); ++n) {
    const NodeRank node(static_cast<int>(n));
    for (const HeldSet& set : by_node[n]) {
      if (!IsPossible(set)) continue;
      HeldChoice& choice = choices[{-set.step, set.checksum, set.manifest_bytes,
                                    set.num_shards}];
      choice.step = set.step;
      choice.checksum = set.checksum;
      choice.manifest_bytes = set.manifest_bytes;
      choice.holders.resize(set.num_shards + 1);
      std::vector<int> files = set.shards;
      files.push_back(set.num_shards);
      for (const int file : files) {
        std::vector<NodeRank>& holders = choice.holders[file];
        const bool is_bad = std::ranges::any_of(bad, [&](const BadCopy& copy) {
          return copy == BadCopy{set.checksum, file, node};
        });
        if (!is_bad && (holders.empty() || holders.back() != node)) {
          holders.push_back(node);
        }
      }
    }
  }
  for (const auto& [key, choice] : choices) {
    if (std::ranges::none_of(choice.holders, [](const auto& holders) {
          return holders.empty();
        })) {
      return choice;
    }
  }
  return std::nullopt;
}

bool EarlierLife::HasMajority() const {
  const int twice = 2 * static_cast<int>(nodes.size());
  return is_over || twice > num_nodes ||
         (twice == num_nodes && nodes.front() == 0);
}

std::optional<EarlierLife> FindEarlierLife(
    std::span<const std::vector<HeldSet>> by_node,
    std::span<const Membership> memberships) {
  const HeldSet* newest = nullptr;
  for (const std::vector<HeldSet>& sets : by_node) {
    for (const HeldSet& set : sets) {
      if (IsPossible(set) && (newest == nullptr || newest->step < set.step)) {
        newest = &set;
      }
    }
  }
  if (newest == nullptr) return std::nullopt;
  std::set<int> nodes;
  for (const Membership& was : memberships) {
    if (was.num_nodes == newest->num_shards && was.node >= 0 &&
        was.node < was.num_nodes) {
      nodes.insert(was.node);
    }
  }
  return EarlierLife{newest->step,
                     newest->num_shards,
                     {nodes.begin(), nodes.end()},
                     newest->is_last};
}

}  // namespace ballast::snapshot
