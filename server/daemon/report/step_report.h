// What the engine says of a step, as the control block has it: what was not
// measured is NaN there, never 0.
//
// Threading: pure function.
#ifndef SERVER_DAEMON_REPORT_STEP_REPORT_H_
#define SERVER_DAEMON_REPORT_STEP_REPORT_H_

#include "server/engine/ports.h"
#include "server/ipc/control_block_view.h"

namespace ballast::daemon {

ipc::StepReport ToReport(const engine::StepSummary& summary);

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_REPORT_STEP_REPORT_H_
