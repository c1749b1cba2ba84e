// What a commit says of its step, for the step's record.
//
// Threading: pure functions.
#ifndef SERVER_ENGINE_STEP_SUMMARY_H_
#define SERVER_ENGINE_STEP_SUMMARY_H_

#include "proto/peer.pb.h"
#include "server/base/ids.h"
#include "server/engine/ports.h"
#include "server/layout/metering.h"

namespace ballast::engine {

const v1::ErrorReport& ReportOf(const v1::Commit& commit, layout::Path path);

// All but what this node counts and measures itself: bytes, times, fallbacks,
// tensors with wider codecs, what encoding left over.
StepSummary SummaryOf(const v1::Commit& commit, Generation generation);

}  // namespace ballast::engine

#endif  // SERVER_ENGINE_STEP_SUMMARY_H_
