// Flips bits of published weights, as a scenario says. What is published is
// read by workers until they have pushed: a bit flips after that, and before
// its chunk is written in the step's version, so that nobody computes with it.
//
// Threading: events of the simulation.
#ifndef TESTS_SIM_CORRUPTION_H_
#define TESTS_SIM_CORRUPTION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/base/random.h"
#include "server/collective/published_chunks.h"
#include "server/daemon/job_runtime.h"
#include "tests/sim/scenario.h"
#include "tests/sim/sim_world.h"

namespace ballast::sim {

class Corruption {
 public:
  // `find`: the job on a node; null if it has none.
  using Find = std::function<const daemon::JobRuntime*(int node)>;

  Corruption(SimWorld* world, Find find, uint64_t seed)
      : world_(world), find_(std::move(find)), random_(seed) {}

  void OnAllPushed(WorkerId id, int64_t step);
  // Bits that came too late in their step, and wait for the next.
  int num_waiting() const { return CountLate(/*may_miss=*/false); }
  // And those that may never come.
  int num_missed() const { return CountLate(/*may_miss=*/true); }

 private:
  int CountLate(bool may_miss) const;
  void Try(int node, const Fault& fault, int64_t step, int polls);
  // Whether the chunk is one that the fault speaks of.
  static bool Fits(const Fault& fault, NodeRank owner, size_t index,
                   const collective::ChunkId& id);
  void Flip(const daemon::JobRuntime& job, const collective::ChunkId& id,
            const Fault& fault);

  SimWorld* const world_;
  const Find find_;
  base::SeededRandom random_;
  std::map<std::pair<int, int64_t>, std::set<int>> pushed_;  // ranks
  std::vector<std::pair<int, Fault>> late_;                  // node
};

}  // namespace ballast::sim

#endif  // TESTS_SIM_CORRUPTION_H_
