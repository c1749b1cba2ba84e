// Where the nodes of a job meet before they have a link: each polls the daemon
// of node 0 with how to reach it, until all are there and all agree. Pure: the
// caller gives the time and carries the polls (gRPC, or node 0's own calls).
//
//   Poll --> waiting for others --all there, all equal--> complete
//                 | silent: forgotten                        |
//                 v                                  Leave of node 0: gone
//
// Nodes that go on with a job (rejoin.h) and nodes that begin it do not meet:
// one that comes without what it held is lost, and the others are told so.
//
// Everyone is compared with node 0. Two nodes of one rank that both live are a
// contradiction: the second is refused. One that went silent (its daemon
// started again) is replaced; one that goes on, at once by the next life of the
// same name.
//
// Requests are hostile input (I27): sizes and counts are bounded.
//
// Threading: control thread only.
#ifndef SERVER_MEMBERSHIP_RENDEZVOUS_H_
#define SERVER_MEMBERSHIP_RENDEZVOUS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"

namespace ballast::membership {

inline constexpr int kMaxNodes = 1024;
inline constexpr size_t kMaxEndpointBytes = 8192;

class Rendezvous {
 public:
  struct Options {
    // A node that does not poll for this long is not there.
    absl::Duration silence = absl::Seconds(5);
    size_t max_jobs = 4096;
    size_t max_members = 16384;  // of all jobs
  };

  Rendezvous() : Rendezvous(Options()) {}
  explicit Rendezvous(const Options& options) : options_(options) {}

  // With `members` once all nodes are there, otherwise with `waiting_for`;
  // the same again however often it is asked. InvalidArgument: malformed, or
  // differs from node 0. AlreadyExists: another node lives under this rank.
  // ResourceExhausted: too many jobs meet here. A request with `leave` is
  // answered with nothing, and those who wait for that node hear its reason.
  absl::StatusOr<v1::RendezvousReply> Poll(const v1::RendezvousRequest& request,
                                           absl::Time now);

  // This life of node 0 is over: what met around it is forgotten.
  void Leave(std::string_view job, Incarnation incarnation);

  size_t num_members() const { return num_members_; }

 private:
  struct Member {
    v1::RendezvousRequest request;
    absl::Time heard;
    // Another life that claims this rank, and since when.
    uint64_t challenger = 0;
    absl::Time challenged;
    // Not OK: another node of this run gave up; told once.
    absl::Status given_up = absl::OkStatus();
  };
  struct Job {
    bool is_complete = false;
    absl::btree_map<int, Member> members;  // by node rank
    // The last node that differed from node 0, until it comes again; and how.
    int refused_node = 0;
    std::string refusal;
  };

  absl::Status Enter(Job* job, const v1::RendezvousRequest& request,
                     absl::Time now);
  absl::StatusOr<v1::RendezvousReply> AnswerComplete(
      const Job& job, const v1::RendezvousRequest& request) const;
  absl::StatusOr<v1::RendezvousReply> Contest(
      Member* member, const v1::RendezvousRequest& request, absl::Time now);
  absl::Status Separate(Job* job, const v1::RendezvousRequest& request);
  void GiveUp(Job* job, const v1::RendezvousRequest& request);
  void Forget(Job* job, absl::Time now);
  void ForgetAll(absl::Time now);

  const Options options_;
  absl::btree_map<std::string, Job> jobs_;
  size_t num_members_ = 0;
};

}  // namespace ballast::membership

#endif  // SERVER_MEMBERSHIP_RENDEZVOUS_H_
