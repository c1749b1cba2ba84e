// Replaces the weights of a running job by those that rank 0 gave in place of
// gradients (proto::Load), on one node, once that step is committed:
//
//   StartLoad   what a snapshot still needs is kept (I18); on node 0 rank 0's
//               gradients become the node's weights; then they go from node 0
//               to all nodes, as at the start
//   Finish      masters from the weights, checksums anew; moments and residuals
//               stay, or are zero
//
// The step is committed everywhere before a byte is overwritten anywhere: a
// step that is aborted leaves the old weights whole. A node that fails after
// that ends the job, as in any step, and it starts again from a snapshot.
//
// Threading: control thread only, which copies and widens the node's weights
// (as at the start of a job).
// Ownership: borrows all of Parts.
#ifndef SERVER_DAEMON_WEIGHT_LOAD_H_
#define SERVER_DAEMON_WEIGHT_LOAD_H_

#include <functional>
#include <optional>

#include "server/base/ids.h"
#include "server/collective/collective.h"
#include "server/collective/published_chunks.h"
#include "server/engine/ports.h"
#include "server/optimizer/optimizer.h"
#include "server/optimizer/residuals.h"
#include "server/optimizer/update_guard.h"
#include "server/session/local_job.h"

namespace ballast::daemon {

class WeightLoad final : public engine::LoadPort {
 public:
  struct Parts {
    session::LocalJob* job = nullptr;
    optimizer::Optimizer* optimizer = nullptr;
    collective::PublishedChunks* published = nullptr;  // null: no deltas
    optimizer::Residuals* residuals = nullptr;  // null: no error feedback
    optimizer::UpdateGuard* guard = nullptr;    // of them; null: nobody looks
    // The generation's.
    std::function<collective::Collective*()> collective;
    // The node's weights are those of the step already: they go to the others
    // as they are. Null: never.
    std::function<bool(Step)> is_loaded = nullptr;
  };

  explicit WeightLoad(Parts parts) : parts_(std::move(parts)) {}

  // engine::LoadPort
  void StartLoad(Step step, bool resets_state) override;

  // The links are lost: StartLoad comes again, on all nodes.
  void Abandon() { step_.reset(); }
  // Of StartLoad, until Finish.
  bool is_running() const { return step_.has_value(); }
  // The collective's OnBroadcast came.
  void Finish();

 private:
  void TakeGradients();
  void ResetResiduals();

  const Parts parts_;
  std::optional<Step> step_;
  std::optional<Step> taken_;  // rank 0's gradients are the weights
  bool resets_state_ = false;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_WEIGHT_LOAD_H_
