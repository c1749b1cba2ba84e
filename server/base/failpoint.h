// Named places where a test makes the process fail, or breaks it on purpose.
// They are compiled in only where BALLAST_FAILPOINTS is defined, which is in
// //server/daemon:failpoints alone; a release has neither code nor name of one.
//
//   BALLAST_FAILPOINT("engine.publish");          // may die here
//   RETURN_IF_ERROR(BALLAST_FAILPOINT_STATUS("snapshot.before_write"));
//   if (!BALLAST_SABOTAGED("optimizer.no_undo")) Keep();   // negative tests
//
// In .cc files only: of an inline function the linker might take either. What
// of them happens is one text (`ballastd_failpoints --failpoints`):
//
//   engine.publish=kill@3;snapshot.before_write=error%10;optimizer.no_undo=break
//   NAME=ACTION[@N][%P]   ACTION: kill (SIGKILL), error (Unavailable), break
//                         @N: only at the N-th hit; %P: at P percent of them,
//                         drawn from the seed
//
// Threading: Configure and SetDeath before other threads hit failpoints; hits
// from any.
#ifndef SERVER_BASE_FAILPOINT_H_
#define SERVER_BASE_FAILPOINT_H_

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/status.h"

#ifdef BALLAST_FAILPOINTS
#define BALLAST_FAILPOINT(name) \
  static_cast<void>(::ballast::base::HitFailpoint(name))
#define BALLAST_FAILPOINT_STATUS(name) ::ballast::base::HitFailpoint(name)
#define BALLAST_SABOTAGED(name) ::ballast::base::IsSabotaged(name)
#else
#define BALLAST_FAILPOINT(name) static_cast<void>(0)
#define BALLAST_FAILPOINT_STATUS(name) ::absl::OkStatus()
#define BALLAST_SABOTAGED(name) false
#endif

namespace ballast::base {

// InvalidArgument names the entry that is malformed.
absl::Status ConfigureFailpoints(std::string_view spec, uint64_t seed);

// What a kill does in place of SIGKILL, for simulated processes; if it returns,
// the process lives on. Null: SIGKILL again.
void SetDeath(std::function<void(std::string_view name)> death);

// What the macros call: the process dies, or an error is returned, or OK.
absl::Status HitFailpoint(std::string_view name);
bool IsSabotaged(std::string_view name);

}  // namespace ballast::base

#endif  // SERVER_BASE_FAILPOINT_H_
