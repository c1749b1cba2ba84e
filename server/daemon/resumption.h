// Where a job goes on whose daemon ended, from what was recorded: pure.
//
//   recorded outcome      state      published   ->
//   none, commit S        S          S           step S + 1 is open
//   commit S              S          S - 1       S is carried out, S + 1 opens
//   commit S + 1          S          S           S + 1 is open: nobody was told
//   abort of S + 1        S          S           S + 1, in its next generation;
//                                                who was not told of it is now
//
// In the third case the vote comes again with the same bits, and so does its
// outcome. All else contradicts the order in which a daemon writes.
#ifndef SERVER_DAEMON_RESUMPTION_H_
#define SERVER_DAEMON_RESUMPTION_H_

#include <optional>

#include "absl/status/statusor.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"

namespace ballast::daemon {

struct Resumption {
  Generation generation;
  Step open_step;                    // once `commit` is carried out
  std::optional<v1::Commit> commit;  // of the step before it
  std::optional<v1::Abort> abort;    // of it, in the generation before
};

// `state`: the last step whose scalars were committed; `finished`: the last
// one that was published. DataLoss if they do not fit together.
absl::StatusOr<Resumption> Resume(const std::optional<v1::PeerFrame>& outcome,
                                  Step state, Step finished);

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_RESUMPTION_H_
