#include "server/session/process_watch.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ballast::session {
namespace {

constexpr size_t kMaxNamed = 8;

std::string NameOf(const LocalJob& job, LocalRank rank) {
  return absl::StrCat("rank ", job.RankOf(rank).value());
}

}  // namespace

std::optional<ipc::ProcessState> ProcessWatch::StateOf(const LocalJob& job,
                                                       LocalRank rank,
                                                       absl::Time now) {
  const WorkerLink* const link = job.slot(rank).link();
  looks_.resize(job.local_world_size());
  std::optional<Look>& look = looks_[rank.value()];
  if (link == nullptr) {
    look.reset();
    return std::nullopt;
  }
  const Incarnation worker = link->identity().incarnation;
  if (!look.has_value() || look->worker != worker || now - look->at >= kEvery) {
    look = Look{worker, now, link->process_state()};
  }
  return look->state;
}

std::string ProcessWatch::Describe(const LocalJob& job, absl::Time now) {
  std::vector<std::string> stopped;
  std::vector<std::string> unknown;
  for (int l = 0; l < job.local_world_size(); ++l) {
    const LocalRank rank(l);
    if (!job.owes(rank)) continue;
    const auto state = StateOf(job, rank, now);
    if (state == ipc::ProcessState::kUnknown) {
      unknown.push_back(NameOf(job, rank));
    }
    if (state != ipc::ProcessState::kStopped) continue;
    const int64_t pid = job.slot(rank).identity().pid;
    stopped.push_back(
        absl::StrCat(NameOf(job, rank), " (pid ", pid,
                     ") is stopped (SIGSTOP or a debugger): kill -CONT ", pid));
  }
  for (std::vector<std::string>* const names : {&stopped, &unknown}) {
    if (names->size() <= kMaxNamed) continue;
    const size_t more = names->size() - kMaxNamed;
    names->resize(kMaxNamed);
    names->push_back(absl::StrCat(more, " more"));
  }
  if (!unknown.empty()) {
    stopped.push_back(absl::StrCat(
        "whether ", absl::StrJoin(unknown, ", "),
        " runs or is stopped cannot be told: its pid is not visible to the "
        "daemon"));
  }
  return absl::StrJoin(stopped, "; ");
}

}  // namespace ballast::session
