// A worker's passes over weights that are not resident: each unit is wanted,
// used and given back, forward in order, backward in reverse, with at most
// `window` of them wanted at once. Writes and reads control block words; when
// to look is the caller's.
//
// Threading: events of its worker's SimProcess.
#ifndef TESTS_SIM_SIM_GATHER_H_
#define TESTS_SIM_SIM_GATHER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "client/worker/control_view.h"
#include "server/layout/gather_units.h"

namespace ballast::sim {

class SimGather {
 public:
  // `view` outlives it.
  SimGather(layout::GatherUnits units, int window, worker::ControlView* view)
      : units_(std::move(units)),
        window_(window),
        view_(view),
        requests_(units_.size()) {}

  const layout::GatherUnits& units() const { return units_; }

  // A new pass; what the last one still wants is given back.
  void Begin(bool is_backward, int64_t version);
  bool is_backward() const { return is_backward_; }
  // Every unit was used and given back.
  bool is_done() const { return num_used_ == units_.size(); }

  // Wants what the window allows; appends units that are held now for the first
  // time. True if a word has changed: ring the doorbell.
  bool Look(std::vector<int>* held);
  void GiveBack(int unit);
  // Of the pass's version, still.
  bool IsHeld(int unit) const;
  bool is_refused() const { return is_refused_; }

 private:
  struct Wanted {
    int unit;
    bool is_held;
  };

  const layout::GatherUnits units_;
  const int window_;
  worker::ControlView* const view_;
  std::vector<uint64_t> requests_;  // by unit
  bool is_backward_ = false;
  int64_t version_ = 0;
  int next_ = 0;  // units of this pass that were wanted
  int num_used_ = 0;
  bool is_refused_ = false;
  std::vector<Wanted> wanted_;
};

}  // namespace ballast::sim

#endif  // TESTS_SIM_SIM_GATHER_H_
