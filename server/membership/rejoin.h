// Where a job goes on whose nodes have met again, from what each of them kept:
// pure. A node records an outcome before it acts on it, the coordinator before
// it tells anyone, and nothing is decided before all have voted: so the last
// outcome that any node has is the job's, and nobody is further behind than
// that one outcome.
//
//   last outcome of any     nodes may be at          ->
//   none                    the first version        step first + 1 is open
//   commit S                S or S - 1, published    S + 1 is open; if any node
//                           or not                   has not published S, all
//                                                    carry it out
//   abort of S + 1          S, published             S + 1 is open, in the next
//                                                    generation
//
// A node that did not hear of a commit still has its reduced gradients: it
// voted. All else is DataLoss, which names two nodes and what they hold.
#ifndef SERVER_MEMBERSHIP_REJOIN_H_
#define SERVER_MEMBERSHIP_REJOIN_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"

namespace ballast::membership {

// The node comes with what it kept of a job that ran.
inline bool GoesOn(const v1::Join& join) {
  return join.has_state() && join.generation() > 0;
}

struct Rejoined {
  Generation generation;
  Step open_step;  // once `commit` is carried out
  int64_t optimizer_step = 0;
  std::string rank0_cursor;          // that node 0 committed last
  std::optional<v1::Commit> commit;  // of the step before it
  std::optional<v1::Abort> abort;    // of it, in the generation before
};

// By node rank, at least one; all of them go on. Their contents are hostile
// input (I27).
absl::StatusOr<Rejoined> DecideRejoin(std::span<const v1::Join* const> joins);

}  // namespace ballast::membership

#endif  // SERVER_MEMBERSHIP_REJOIN_H_
