// What the workers are told of a committed step: proto::StepRecord without
// its words (and engine::StepSummary, which session must not include).
#ifndef SERVER_SESSION_STEP_RESULT_H_
#define SERVER_SESSION_STEP_RESULT_H_

#include <array>
#include <cstdint>

#include "server/base/ids.h"

namespace ballast::session {

struct StepResult {
  Generation generation;
  Step step;
  bool skipped = false;
  WeightVersion weight_version;
  int64_t optimizer_step = 0;
  double grad_norm = 0;
  double clip_factor = 1;
  double lr = 0;
  double relative_error = 0;
  uint32_t fallbacks = 0;
  uint64_t wire_bytes_sent = 0;
  uint64_t wire_bytes_received = 0;
  uint64_t payload_bytes = 0;
  double seconds = 0;
  std::array<double, 6> stage_seconds{};
};

}  // namespace ballast::session

#endif  // SERVER_SESSION_STEP_RESULT_H_
