// What ballastctl does, apart from its command line.
//
// Threading: one thread; blocks at most the given time.
#ifndef CLIENT_CTL_COMMANDS_H_
#define CLIENT_CTL_COMMANDS_H_

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace ballast::ctl {

enum ExitCode {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kUnreachable = 3,
  kNotFound = 4,
  kRefused = 5,
};

struct Options {
  std::string address = "unix:///run/ballast/admin.sock";
  bool json = false;
  absl::Duration timeout = absl::Seconds(10);
};

struct Result {
  ExitCode code = kOk;
  std::string out;  // for stdout
  std::string err;  // one line for stderr, or empty
};

Result Status(const Options& options);
Result Jobs(const Options& options);
Result Job(const Options& options, const std::string& name);
// The nodes that the job waits for are gone for good; to node 0 of it.
Result Adopt(const Options& options, const std::string& name);
Result Drain(const Options& options);
Result Version(const Options& options);
// Returns when the snapshot is durable, after at most a day. `name` empty:
// named by its step.
Result CheckpointSave(Options options, const std::string& job,
                      const std::string& name);

// doctor.h, over the daemon and all its jobs: kFailed if something is wrong.
Result Doctor(const Options& options);

// Verbs that are not there yet, and what there is instead or brings them.
struct LaterVerb {
  const char* name;
  const char* instead;
};
const std::vector<LaterVerb>& LaterVerbs();
Result Later(const LaterVerb& verb);

}  // namespace ballast::ctl

#endif  // CLIENT_CTL_COMMANDS_H_
