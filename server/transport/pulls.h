// One-sided reads by agreement: a node asks another one for a named range, and
// that node sends it from its memory, now or once it has it, or refuses.
//
//   pulls.SetSource(kKind, source);                      // on the serving node
//   ASSIGN_OR_RETURN(id, pulls.Pull(NodeRank(1), key, into, done));   // asking
//
//   asker                                source
//   Prepare, Post(receive) ── request ─▶ OnPull(key) … reply.Send(bytes)
//                          ◀═ exchange ═ Prepare, Post(send)
//   done(OK)               ◀─ refusal ── or reply.Refuse(why)
//
// The bytes move by an exchange of the transport: its chunks, checksums,
// fences, backpressure and errors are those of all exchanges, whatever the
// backend. Requests and refusals are small frames, which may be lost, repeated
// and reordered: a request is repeated until its bytes or a refusal are there,
// and takes effect once.
//
// Threading: control thread only. `done` and `sent` never run inside a call of
// this class; they may pull, cancel and reply, but not destroy it.
// Ownership: borrows its parts; is destroyed before the transport. Then, or
// after Cancel, neither `done` is called nor the memory touched.
// Errors of a pull: Unavailable, the peer is gone; DataLoss, it sends another
// size; else what the source refused with, which names the node.
#ifndef SERVER_TRANSPORT_PULLS_H_
#define SERVER_TRANSPORT_PULLS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/peer.pb.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/transport/transport.h"

namespace ballast::transport {

// Of the exchanges, in the low byte as the collective's phases; above it the
// asker's node rank.
inline constexpr uint32_t kPullPhase = 16;
// That one node has asked for and not got.
inline constexpr int kMaxPulls = 1024;
inline constexpr size_t kMaxRefusalBytes = 1024;

// What is asked for. From a peer it is hostile input: the source checks it.
struct PullKey {
  Generation generation = {};
  WeightVersion version = {};
  BucketId bucket = {};
  NodeRank owner = {};
  uint32_t kind = 0;   // who answers: one source per kind
  uint32_t chunk = 0;  // for the source to read
  bool operator==(const PullKey&) const = default;
};

using PullId = Id<struct PullIdTag, uint64_t>;

class Pulls;

// The right to answer one request, once; the source may keep it until it has
// the bytes. Dropped, it refuses with Unavailable. Harmless if the asker
// cancelled, or the Pulls is gone.
class PullReply {
 public:
  using Sent = absl::AnyInvocable<void(const absl::Status&) &&>;

  PullReply() = default;
  PullReply(PullReply&& other) noexcept { *this = std::move(other); }
  PullReply& operator=(PullReply&& other) noexcept;
  ~PullReply() { Drop(); }

  // False once the asker has cancelled or asked anew.
  bool is_wanted() const;
  // The bytes are not changed until `sent`, which says how it ended (Cancelled:
  // the asker does not want them any more).
  void Send(std::span<const std::byte> bytes, Sent sent) &&;
  void Refuse(const absl::Status& why) &&;

 private:
  friend class Pulls;
  PullReply(std::weak_ptr<Pulls*> pulls, NodeRank asker, PullId id)
      : pulls_(std::move(pulls)), asker_(asker), id_(id) {}
  void Drop();
  Pulls* Take();

  std::weak_ptr<Pulls*> pulls_;  // weak: a reply may outlive the Pulls
  NodeRank asker_;
  PullId id_;
};

class PullSource {
 public:
  virtual ~PullSource() = default;
  // Once per request, repeated or not. May answer from inside.
  virtual void OnPull(NodeRank from, const PullKey& key, PullReply reply) = 0;
};

// How frames go to the other nodes.
class PullFramePort {
 public:
  virtual ~PullFramePort() = default;
  // Unavailable when it is known that the peer is gone.
  virtual absl::Status SendPull(NodeRank to, const v1::Pull& frame) = 0;
};

class Pulls {
 public:
  using Done = absl::AnyInvocable<void(const absl::Status&) &&>;

  struct Parts {
    Transport* transport = nullptr;
    base::Executor* executor = nullptr;
    PullFramePort* frames = nullptr;
    uint64_t job_key = 0;
    // After a request without an answer; then twice, four times as long …
    absl::Duration repeat_after = absl::Milliseconds(100);
  };

  struct Counters {
    // Of the exchanges. Payload: of those that ended well.
    ByteCounters bytes;
    uint64_t asked = 0;
    uint64_t answered = 0;  // sent in full
    uint64_t refused = 0;   // by this node
    uint64_t repeats = 0;   // requests sent again
    uint64_t strays = 0;    // frames that fit nothing, or say nothing
  };

  explicit Pulls(const Parts& parts);
  ~Pulls();
  Pulls(const Pulls&) = delete;
  Pulls& operator=(const Pulls&) = delete;

  // Fills `into`, exactly. InvalidArgument: from oneself, or more bytes than a
  // part may have. ResourceExhausted beyond kMaxPulls. Unavailable: the peer is
  // known to be gone.
  absl::StatusOr<PullId> Pull(NodeRank from, const PullKey& key,
                              std::span<std::byte> into, Done done);
  // Once it returns, `into` is not touched any more. Unknown ids are ignored.
  void Cancel(PullId id);

  // Null: requests of this kind are refused with Unimplemented.
  void SetSource(uint32_t kind, PullSource* source);

  // Ends the answers under way for which `is_stale` says true: the askers hear
  // `why`, `sent` runs. What the source has not answered is its own affair.
  void Withdraw(absl::AnyInvocable<bool(const PullKey&)> is_stale,
                const absl::Status& why);

  // `frame` is hostile input (I27), `from` is its true sender.
  void OnFrame(NodeRank from, const v1::Pull& frame);

  size_t num_asking() const { return num_asking_; }
  size_t num_sending() const;
  Counters counters() const;

 private:
  friend class PullReply;
  struct Asking;
  struct Answer;

  int SlotOf(PullId id) const {
    return static_cast<int>(id.value() % kMaxPulls);
  }
  ExchangeSpec SpecOf(NodeRank asker, PullId id, Generation generation) const;
  Asking* FindAsking(PullId id);
  Answer* FindAnswer(NodeRank asker, PullId id);
  absl::Status Request(const Asking& asking);
  // By value: an exchange that reports a status may own it, and goes here.
  void EndAsking(PullId id, absl::Status status);
  void ArmTimer();
  void Repeat();
  void OnRequest(NodeRank from, PullId id, const v1::PullRequest& request);
  void OnCancel(NodeRank from, PullId id);
  void OnRefusal(NodeRank from, PullId id, const v1::PullRefusal& refusal);
  void StartSending(NodeRank asker, PullId id, std::span<const std::byte> bytes,
                    PullReply::Sent sent);
  void Refuse(NodeRank asker, PullId id, const absl::Status& why);
  void SendRefusal(const Answer& answer);
  void EndAnswer(Answer* answer, absl::Status status);
  void Count(const Exchange& exchange);
  void Post(absl::AnyInvocable<void() &&> fn);

  const Parts parts_;
  const NodeRank self_;
  std::vector<std::unique_ptr<Asking>> asking_;  // by slot
  size_t num_asking_ = 0;
  uint64_t next_life_ = 1;
  absl::flat_hash_map<std::pair<NodeRank, int>, std::unique_ptr<Answer>>
      answers_;  // the last one by asker and slot
  absl::flat_hash_map<uint32_t, PullSource*> sources_;
  base::TimerId timer_ = 0;
  Counters counters_;  // of what has ended
  // Weak in replies and in what is posted.
  std::shared_ptr<Pulls*> alive_;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_PULLS_H_
