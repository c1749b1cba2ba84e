#include "server/membership/rendezvous.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/membership/action.h"
#include "server/membership/join_rules.h"
#include "server/membership/rejoin.h"

namespace ballast::membership {
namespace {

constexpr size_t kMaxTextBytes = 256;  // names of nodes, digests, options
constexpr int kMaxOptions = 32;
constexpr size_t kMaxLeaveBytes = 1024;

absl::Status CheckOptions(const v1::Join& join) {
  if (join.options_size() > kMaxOptions) {
    return absl::InvalidArgumentError(
        absl::StrCat(join.options_size(), " options of the job, at most ",
                     kMaxOptions, " are allowed"));
  }
  for (const v1::JobOption& option : join.options()) {
    for (const std::string* text :
         {&option.name(), &option.value(), &option.canonical()}) {
      if (text->size() <= kMaxTextBytes) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("an option of the job of ", text->size(),
                       " bytes, at most ", kMaxTextBytes, " are allowed"));
    }
  }
  return absl::OkStatus();
}

absl::Status Check(const v1::RendezvousRequest& request) {
  RETURN_IF_ERROR(base::CheckJobName(request.job()));
  const v1::Join& join = request.join();
  if (join.num_nodes() < 2 || join.num_nodes() > kMaxNodes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a job of ", join.num_nodes(), " nodes, allowed are 2 to ", kMaxNodes));
  }
  if (request.node() < 0 || request.node() >= join.num_nodes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "node ", request.node(), " of a job of ", join.num_nodes(), " nodes"));
  }
  if (request.incarnation() == 0) {
    return absl::InvalidArgumentError("an incarnation of 0");
  }
  if (request.endpoint().empty() ||
      request.endpoint().size() > kMaxEndpointBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("an endpoint of ", request.endpoint().size(),
                     " bytes, allowed are 1 to ", kMaxEndpointBytes));
  }
  for (const std::string* text :
       {&request.node_name(), &join.layout_digest(), &join.model_digest()}) {
    if (text->size() > kMaxTextBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a name or digest of ", text->size(), " bytes, at most ",
                       kMaxTextBytes, " are allowed"));
    }
  }
  if (request.leave().text().size() > kMaxLeaveBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a reason to leave of ", request.leave().text().size(),
                     " bytes, at most ", kMaxLeaveBytes, " are allowed"));
  }
  return CheckOptions(join);
}

v1::RendezvousReply WaitFor(std::string whom) {
  v1::RendezvousReply reply;
  reply.set_waiting_for(std::move(whom));
  return reply;
}

// The same daemon, or the next one of its host: only there is what the node
// kept of the job.
bool IsNextLife(const v1::RendezvousRequest& last,
                const v1::RendezvousRequest& next) {
  return GoesOn(last.join()) && GoesOn(next.join()) &&
         last.node_name() == next.node_name();
}

template <typename Members>
std::string Missing(const Members& members, int num_nodes) {
  constexpr size_t kMaxNamed = 8;
  std::vector<int> missing;
  size_t num_missing = 0;
  for (int n = 0; n < num_nodes; ++n) {
    if (members.contains(n)) continue;
    if (++num_missing <= kMaxNamed) missing.push_back(n);
  }
  if (num_missing == 0) return "";
  return absl::StrCat(
      num_missing == 1 ? "node " : "nodes ", absl::StrJoin(missing, ", "),
      num_missing > kMaxNamed ? " and more" : "", " of ", num_nodes,
      num_missing == 1 ? " has" : " have", " not come");
}

}  // namespace

absl::StatusOr<v1::RendezvousReply> Rendezvous::Poll(
    const v1::RendezvousRequest& request, absl::Time now) {
  RETURN_IF_ERROR(Check(request));
  auto it = jobs_.find(request.job());
  if (request.has_leave()) {
    if (it != jobs_.end()) GiveUp(&it->second, request);
    return v1::RendezvousReply();
  }
  if (it == jobs_.end()) {
    ForgetAll(now);
    if (jobs_.size() >= options_.max_jobs) {
      return absl::ResourceExhaustedError(
          absl::StrCat(jobs_.size(), " jobs meet at this daemon, at most ",
                       options_.max_jobs, " may"));
    }
    it = jobs_.emplace(request.job(), Job()).first;
  }
  Job* const job = &it->second;
  if (job->is_complete) return AnswerComplete(*job, request);
  Forget(job, now);
  RETURN_IF_ERROR(Separate(job, request));
  const auto member = job->members.find(request.node());
  if (member != job->members.end() && !member->second.given_up.ok() &&
      member->second.request.incarnation() == request.incarnation()) {
    const absl::Status why = member->second.given_up;
    job->members.erase(member);
    --num_members_;
    return why;
  }
  if (member != job->members.end() &&
      member->second.request.incarnation() != request.incarnation() &&
      member->second.given_up.ok() &&
      !IsNextLife(member->second.request, request)) {
    return Contest(&member->second, request, now);
  }
  RETURN_IF_ERROR(Enter(job, request, now));
  const auto first = job->members.find(0);
  const int num_nodes = first == job->members.end()
                            ? request.join().num_nodes()
                            : first->second.request.join().num_nodes();
  const std::string missing = Missing(job->members, num_nodes);
  if (!missing.empty()) {
    // Whoever waits for it hears why; it may be mended and come again.
    if (job->refusal.empty()) return WaitFor(missing);
    return WaitFor(absl::StrCat(missing, "; refused: ", job->refusal));
  }
  for (const auto& [node, other] : job->members) {
    if (other.challenger != 0 && other.heard <= other.challenged) {
      return WaitFor(absl::StrCat("two lives of node ", node,
                                  " have come, the first is silent"));
    }
    // It is told so when it polls next.
    const std::string difference = JoinDifference(
        num_nodes, first->second.request.join(), node, other.request.join());
    if (!difference.empty()) return WaitFor(difference);
  }
  job->is_complete = true;
  return AnswerComplete(*job, request);
}

// Whoever begins a job whose other nodes go on with it has lost its part: they
// end, and may then come for a new run.
absl::Status Rendezvous::Separate(Job* job,
                                  const v1::RendezvousRequest& request) {
  const bool goes_on = GoesOn(request.join());
  for (auto& [node, member] : job->members) {
    if (GoesOn(member.request.join()) == goes_on || !member.given_up.ok()) {
      continue;
    }
    const v1::RendezvousRequest& lost = goes_on ? member.request : request;
    const absl::Status why = absl::AbortedError(absl::StrCat(
        "node ", lost.node(), " on ", base::Quoted(lost.node_name()),
        " has come back without its part of the job's state, which is lost"));
    if (goes_on) return why;
    member.given_up = why;
  }
  return absl::OkStatus();
}

absl::Status Rendezvous::Enter(Job* job, const v1::RendezvousRequest& request,
                               absl::Time now) {
  const auto first = job->members.find(0);
  // Those that go on and those that begin are told apart (Separate).
  if (request.node() != 0 && first != job->members.end() &&
      GoesOn(first->second.request.join()) == GoesOn(request.join())) {
    const v1::Join& join = first->second.request.join();
    const std::string difference =
        JoinDifference(join.num_nodes(), join, request.node(), request.join());
    if (!difference.empty()) {
      num_members_ -= job->members.erase(request.node());
      job->refusal = difference;
      job->refused_node = request.node();
      return absl::InvalidArgumentError(difference);
    }
  }
  if (!job->members.contains(request.node())) {
    if (num_members_ >= options_.max_members) {
      return absl::ResourceExhaustedError(
          absl::StrCat(num_members_, " nodes meet at this daemon, at most ",
                       options_.max_members, " may"));
    }
    ++num_members_;
  }
  if (job->refused_node == request.node()) job->refusal.clear();
  Member& member = job->members[request.node()];
  member.request = request;
  member.request.mutable_join()->clear_progress();
  member.heard = now;
  member.given_up = absl::OkStatus();
  return absl::OkStatus();
}

absl::StatusOr<v1::RendezvousReply> Rendezvous::Contest(
    Member* member, const v1::RendezvousRequest& request, absl::Time now) {
  const std::string who =
      absl::StrCat("node ", request.node(), " is there already, on ",
                   base::Quoted(member->request.node_name()));
  if (member->challenger != request.incarnation()) {
    member->challenger = request.incarnation();
    member->challenged = now;
  } else if (member->heard > member->challenged) {
    return absl::AlreadyExistsError(
        absl::StrCat(who, ": two nodes of job ", base::Quoted(request.job()),
                     " have this rank; give each its own node_rank"));
  }
  return WaitFor(absl::StrCat(who, ", and may still live"));
}

absl::StatusOr<v1::RendezvousReply> Rendezvous::AnswerComplete(
    const Job& job, const v1::RendezvousRequest& request) const {
  const auto it = job.members.find(request.node());
  if (it == job.members.end() ||
      it->second.request.incarnation() != request.incarnation()) {
    return WaitFor(absl::StrCat(
        "a run of job ", base::Quoted(request.job()), " has all its ",
        job.members.size(), " nodes and must end first",
        it == job.members.end()
            ? std::string()
            : absl::StrCat("; its node ", request.node(), " is on ",
                           base::Quoted(it->second.request.node_name()))));
  }
  v1::RendezvousReply reply;
  for (const auto& [node, member] : job.members) {
    v1::RendezvousMember* const out = reply.add_members();
    out->set_node(node);
    out->set_incarnation(member.request.incarnation());
    out->set_node_name(member.request.node_name());
    out->set_endpoint(member.request.endpoint());
  }
  return reply;
}

void Rendezvous::GiveUp(Job* job, const v1::RendezvousRequest& request) {
  const auto it = job->members.find(request.node());
  if (job->is_complete || it == job->members.end() ||
      it->second.request.incarnation() != request.incarnation()) {
    return;
  }
  job->members.erase(it);
  --num_members_;
  // Told when they poll next; others may come for a new run meanwhile.
  const absl::Status why =
      ToStatus(request.leave().code(),
               absl::StrCat("node ", request.node(),
                            " has given up: ", request.leave().text()));
  if (why.ok()) return;
  for (auto& [node, member] : job->members) member.given_up = why;
}

void Rendezvous::Leave(std::string_view job, Incarnation incarnation) {
  const auto it = jobs_.find(std::string(job));
  if (it == jobs_.end()) return;
  const auto first = it->second.members.find(0);
  if (first == it->second.members.end() ||
      first->second.request.incarnation() != incarnation.value()) {
    return;
  }
  if (it->second.is_complete) {
    num_members_ -= it->second.members.size();
    jobs_.erase(it);
  } else {
    it->second.members.erase(first);
    --num_members_;
  }
}

void Rendezvous::Forget(Job* job, absl::Time now) {
  num_members_ -= absl::erase_if(job->members, [&](const auto& entry) {
    return now - entry.second.heard > options_.silence;
  });
}

void Rendezvous::ForgetAll(absl::Time now) {
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    if (!it->second.is_complete) Forget(&it->second, now);
    if (it->second.members.empty()) {
      it = jobs_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace ballast::membership
