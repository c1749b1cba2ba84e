// Whether a session that could not be opened is tried again, and for how long:
// pure.
//
//   refused for a moment ──────▶ again, within the connect timeout
//   lost before it had begun ──▶ again, within the open timeout
//   anything else, or too late ─▶ the error of the opening
//
// Until Begin is answered a worker has been promised nothing, and what it
// handed over it still has: another attempt starts from nothing. So a daemon
// that dies or is replaced meanwhile, and a job that ends since it lost one of
// its nodes, are waited for.
//
// Threading: thread-compatible.
#ifndef CLIENT_WORKER_OPENING_H_
#define CLIENT_WORKER_OPENING_H_

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ballast::worker {

// How an attempt failed.
enum class AttemptEnd {
  kFinal,    // another one would fail likewise
  kAbsent,   // no daemon answered, for as long as it was looked for
  kPassing,  // it refused for a moment
  kEnded,    // it said that it, or the job, has to start again
  kLost,     // it went away and said nothing
};

class Opening {
 public:
  struct Options {
    std::string address;
    absl::Duration connect_timeout;
    absl::Duration open_timeout;
  };
  Opening(Options options, absl::Time now)
      : options_(std::move(options)),
        patience_(now +
                  std::min(options_.connect_timeout, options_.open_timeout)),
        deadline_(now + options_.open_timeout) {}

  // The whole opening's.
  absl::Time deadline() const { return deadline_; }
  // Until when a daemon is looked for, and refusals that pass are borne with.
  absl::Time patience() const { return num_lost_ == 0 ? patience_ : deadline_; }

  // An attempt failed. OK: there may be another. Otherwise what the opening
  // ends with; Unavailable, naming daemon, time and reasons, where it was lost.
  absl::Status OnFailed(AttemptEnd how, const absl::Status& status,
                        absl::Time now);

  // Before another attempt: whether it would come too late, as OnFailed says
  // it. One that has no time would end with that alone, and hide the reason.
  absl::Status CheckTime(absl::Time now) const;

  // What the user should know now, in one line, once; mostly empty.
  std::string TakeNews(absl::Time now);

 private:
  absl::Status TooLate(absl::Time now) const;

  const Options options_;
  const absl::Time patience_;
  const absl::Time deadline_;
  AttemptEnd last_how_ = AttemptEnd::kFinal;  // of the last attempt
  absl::Status last_;
  int num_lost_ = 0;
  absl::Time lost_at_;  // the first time; these two only if there was one
  std::string first_loss_;
  bool is_told_ = false;
};

}  // namespace ballast::worker

#endif  // CLIENT_WORKER_OPENING_H_
