// What a job that is opened again goes on from: node 0's part of the agreement,
// as pure decisions. Every node offers what it holds; the newest replica that
// is whole wins, or stored files that are newer, or, where nobody holds any
// part, initial values. If a copy proves damaged there is another round without
// it.
//
// Two halves of a job that lost one another must not both go on: the nodes that
// are here need the majority of those that ran it last, or the operator's word
// that the others are gone for good (DESIGN 6.9). What those ran is known from
// what they hold; where nobody holds anything there is nothing to go by.
//
//   offers of all ─▶ choice of round 1 ─ all loaded ─▶ go
//                       ▲                └ a damaged copy ─▶ round 2, 3, …
//
// Offers are a peer's words (I27): bounded, and never believed to be more than
// what somebody else can check.
//
// Threading: thread-compatible.
#ifndef SERVER_DAEMON_RESUME_COUNCIL_H_
#define SERVER_DAEMON_RESUME_COUNCIL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"
#include "server/snapshot/held_sets.h"

namespace ballast::daemon {

// Sets of a node, and files of a set, that are listened to.
inline constexpr int kMaxOfferedSets = 16;

class ResumeCouncil {
 public:
  struct Options {
    std::string job;
    int num_nodes = 1;
    std::optional<int64_t> stored_step;  // of the files that all nodes found
    bool has_initial_values = true;
    bool must_resume = false;
  };

  explicit ResumeCouncil(Options options);

  // Of a node in [0, num_nodes); repeated or late ones change nothing.
  void OnOffer(NodeRank from, const v1::ResumeOffer& offer);

  // The operator's word. FailedPrecondition: it is not waited for.
  absl::Status Adopt();
  // Why there is no choice though all have offered; empty otherwise.
  const std::string& blocked() const { return blocked_; }

  // Null until all nodes have offered, and may go on.
  const v1::ResumeChoice* choice() const {
    return choice_.round() > 0 ? &choice_ : nullptr;
  }
  // "node 2 has not said what it holds"; empty if nobody is waited for.
  std::string WaitingFor() const;

 private:
  void Decide();
  void BlockIfMinority(const snapshot::EarlierLife& life);
  void Fail(const absl::Status& why);
  void ChooseReplica(const snapshot::HeldChoice& held);

  const Options options_;
  std::vector<std::optional<v1::ResumeOffer>> offers_;  // by node
  std::vector<snapshot::BadCopy> bad_;
  bool is_adopted_ = false;
  std::string blocked_;
  v1::ResumeChoice choice_;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_RESUME_COUNCIL_H_
