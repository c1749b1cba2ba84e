// Named places where a test makes the process fail. Compiled to nothing
// unless the build says --define=failpoints=on.
//
//   BALLAST_FAILPOINT("engine.before_vote");           // kill or pause here
//   RETURN_IF_ERROR(BALLAST_FAILPOINT_STATUS("ipc.segment.create"));
//
// Which of them fire is one text (`ballastd --failpoints`):
//
//   engine.before_vote=kill@3;ipc.segment.create=error%10
//   NAME=ACTION[@N][%P]   ACTION: kill (SIGKILL), error (Unavailable)
//                         @N: only at the N-th hit; %P: at P percent of them,
//                         drawn from the seed
//
// Threading: Configure before other threads hit failpoints; hits from any.
#ifndef SERVER_BASE_FAILPOINT_H_
#define SERVER_BASE_FAILPOINT_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

#ifdef BALLAST_FAILPOINTS
#define BALLAST_FAILPOINT(name) \
  static_cast<void>(::ballast::base::HitFailpoint(name))
#define BALLAST_FAILPOINT_STATUS(name) ::ballast::base::HitFailpoint(name)
#else
#define BALLAST_FAILPOINT(name) static_cast<void>(0)
#define BALLAST_FAILPOINT_STATUS(name) ::absl::OkStatus()
#endif

namespace ballast::base {

// InvalidArgument names the entry that is malformed; Unimplemented if `spec`
// is not empty and failpoints are compiled out.
absl::Status ConfigureFailpoints(std::string_view spec, uint64_t seed);

// What the macros call. The process dies, or an error is returned, or OK.
absl::Status HitFailpoint(std::string_view name);

}  // namespace ballast::base

#endif  // SERVER_BASE_FAILPOINT_H_
