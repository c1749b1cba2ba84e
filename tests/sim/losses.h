// Requests and replies that a scenario loses, one for each such fault.
//
// Threading: one simulated world.
#ifndef TESTS_SIM_LOSSES_H_
#define TESTS_SIM_LOSSES_H_

#include <string>
#include <string_view>
#include <vector>

#include "server/base/ids.h"
#include "tests/sim/fault.h"

namespace ballast::sim {

// The body of a frame, or of what it carries, as proto/peer.proto calls it;
// empty: none.
std::string KindOfFrame(const std::string& frame);

class Losses {
 public:
  // From now on the next one that it speaks of is lost. `fault` stays.
  void Arm(const Fault& fault) { armed_.push_back(&fault); }

  // Whether this one is lost, and by which fault; null: none. A request is of
  // the rank or node that asks, and so is the reply to it.
  const Fault* TakeCall(int rank, std::string_view call, bool is_reply);
  const Fault* TakePoll(int node, bool is_reply);
  const Fault* TakeFrame(NodeRank from, NodeRank to, const std::string& frame);

  // Those that there was no occasion for, but should have been.
  std::vector<const Fault*> Missed() const;

 private:
  const Fault* Take(Fault::Kind kind, bool is_node, int where,
                    std::string_view what);

  std::vector<const Fault*> armed_;
};

}  // namespace ballast::sim

#endif  // TESTS_SIM_LOSSES_H_
