// What befalls a job in a scenario (README.md has the language).
#ifndef TESTS_SIM_FAULT_H_
#define TESTS_SIM_FAULT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/sim/line.h"

namespace ballast::sim {

struct Fault {
  enum class Kind : uint8_t {
    kNan,          // rank's gradient holds a NaN (once)
    kInfinity,     // or an infinity
    kValue,        // rank passes another lr, until it is told
    kCrash,        // rank dies while it pushes
    kDaemonDies,   // node's daemon dies
    kSlow,         // rank waits before it pushes
    kPartition,    // node is cut off from the others
    kCorrupt,      // a bit of the node's published weights flips
    kRestart,      // node's daemon dies; the next goes on with what was kept
                   // (step 0: it dies while the job is being opened)
    kStop,         // rank's process, or node's daemon, is stopped, then goes on
    kKeeperDies,   // node's keeper dies, and another one takes its place
    kLoseRequest,  // the next request of a kind from rank or node is lost
    kLoseReply,    // or the next reply to it
    // Of the disk and all machines; no step's.
    kDiskFails,   // a change fails
    kDiskFull,    // a write has no room
    kPowerFails,  // all stops, and what was not synced may be lost
    kTorn,        // by that, a file has some of its pages
  };
  static constexpr size_t kNumKinds = 17;
  static constexpr Kind kFirstOfNoStep = Kind::kDiskFails;
  Kind kind;
  int64_t step = 1;
  int where = 0;  // rank, or node
  bool is_node = false;
  double value = 0;
  std::string what;  // is lost: a call of the rank, a frame or poll of the node
  absl::Duration after;  // since the first rank computes the step
  std::optional<absl::Duration> back_after;  // restart, or how long
  // kCorrupt: which chunk, by its number in layout order; or any, of the node's
  // own or of others'.
  std::optional<size_t> chunk;
  std::optional<bool> is_own;
  bool is_early = false;   // before the vote; else at any moment
  bool is_unseen = false;  // and the node takes it for what it wrote
  bool may_miss = false;   // nothing strange if there was no occasion
};

// As scenarios say it: "crash".
std::string_view Name(Fault::Kind kind);

// What follows "at", in a job of so many nodes and workers per node.
// InvalidArgument names the word.
absl::StatusOr<Fault> ParseFault(Line* line, int nodes, int workers);

}  // namespace ballast::sim

#endif  // TESTS_SIM_FAULT_H_
