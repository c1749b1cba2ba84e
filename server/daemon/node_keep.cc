// What of a node's jobs outlives its daemon, and is taken over by the next.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/failpoint.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/daemon/kept/kept_formats.h"
#include "server/daemon/kept/last_words.h"
#include "server/daemon/node.h"
#include "server/layout/policy.h"
#include "server/service/convert.h"

namespace ballast::daemon {
namespace {

// Of tensors; they are recorded with each step (JobRecord).
constexpr size_t kMaxKeptBudgets = 8192;

// No other configuration or version could go on with it either: it is damaged,
// given up, or had not begun.
bool IsBeyondUse(const absl::Status& taken) {
  return absl::IsDataLoss(taken) || absl::IsUnavailable(taken);
}

// One that has closed the job may not know yet that this was heard.
bool HasWorkers(const session::LocalJob& job) {
  for (int l = 0; l < job.local_world_size(); ++l) {
    if (job.slot(LocalRank(l)).is_occupied()) return true;
  }
  return false;
}

}  // namespace

session::JobMemory Node::MemoryOf(const session::AttachRequest& request) {
  if (keeping_.vault == nullptr) return {};
  const std::string& name = request.job.name;
  const auto it = keeps_.find(name);
  if (it != keeps_.end() && it->second->is_taken_over()) {
    return {it->second->device(), it->second->vault()};
  }
  const auto policy = layout::ParsePolicy(request.job.exchange);
  std::string_view why_not;
  if (request.placement.num_nodes() > 1) {
    if (options_.relink_timeout == absl::ZeroDuration()) {
      why_not = "it has several nodes, and transport.relink_timeout is 0s";
    } else if (policy.ok() && policy->max_relative_error > 0 &&
               request.job.tensors.size() > kMaxKeptBudgets) {
      why_not =
          "it has several nodes, a max_relative_error, and too many "
          "tensors";
    }
  }
  if (!why_not.empty()) {
    Warn(absl::StrCat("a restart of this daemon ends job=", name, " reason=\"",
                      absl::string_view(why_not.data(), why_not.size()), "\""));
    return {};
  }
  auto& keep = keeps_[name];
  keep = std::make_unique<JobKeep>(leaves_.device, keeping_.vault, name);
  return {keep->device(), keep->vault()};
}

void Node::ReleaseMemory(const std::string& job) {
  const auto it = keeps_.find(job);
  // What becomes of one that is not gone on with, TakeOver decides.
  if (it == keeps_.end() || is_taking_over_) return;
  it->second->vault()->RemoveAll();
  keeps_.erase(it);
}

absl::Status Node::MakeRecord(const session::LocalJob& job,
                              snapshot::LifeId life, JobKeep* keep) const {
  const layout::Topology& topology = job.layout().topology();
  session::AttachRequest request;
  request.job = job.spec();
  request.job.load.clear();
  request.placement = {.rank = topology.FirstRank(job.node()),
                       .world_size = topology.world_size(),
                       .local_rank = LocalRank(0),
                       .local_world_size = topology.local_world_size,
                       .node_rank = job.node()};
  v1::KeptJob kept;
  *kept.mutable_request() = service::ToProto(request);
  kept.set_uid(job.uid());
  kept.set_chunk_bytes(options_.sessions.chunk_bytes);
  kept.set_layout_digest(job.layout().digest());
  *kept.mutable_formats() = OwnFormats();
  kept.set_gathers_weights(job.units() != nullptr);
  kept.set_life(static_cast<uint64_t>(life));
  return keep->MakeRecord(kept);
}

absl::Status Node::TakeOver(Keeping keeping) {
  keeping_ = std::move(keeping);
  std::vector<std::string> refusals;
  for (auto& [name, items] : ByJob(std::exchange(keeping_.found, {}))) {
    std::vector<std::string> names;
    for (const base::Kept& item : items) {
      names.push_back(absl::StrCat(name, "/", item.name));
    }
    LastWords last_words(name, items);
    is_taking_over_ = true;
    const absl::Status taken = keeping_.drops.erase(name) > 0
                                   ? absl::DataLossError("--drop-job names it")
                                   : TakeOverJob(name, std::move(items));
    is_taking_over_ = false;
    if (leaves_.metrics != nullptr) {
      leaves_.metrics
          ->counter(metrics::Family::kJobsTakenOver,
                    {taken.ok() ? "ok" : "failed"})
          ->Increment();
    }
    if (taken.ok()) continue;
    keeps_.erase(name);
    const std::string why(taken.message());
    if (!IsBeyondUse(taken)) {
      refusals.push_back(absl::StrCat("job ", base::Quoted(name), ": ", why));
      continue;
    }
    const int told = last_words.Tell(absl::UnavailableError(absl::StrCat(
        "the daemon has started again and could not go on with job ",
        base::Quoted(name), ": ", why, "; open the session anew")));
    Warn(absl::StrCat("job not taken over job=", name, " reason=\"", why,
                      "\" workers_told=", told));
    for (const std::string& left : names) keeping_.vault->Remove(left);
  }
  for (const std::string& name : keeping_.drops) {
    Warn(
        absl::StrCat("--drop-job: the keeper has no job ", base::Quoted(name)));
  }
  if (refusals.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      absl::StrJoin(refusals, "; "),
      "; nothing of it is lost: it stays with the keeper for a daemon that can "
      "go on with it, or give it up with ballastd --drop-job=NAME"));
}

absl::Status Node::TakeOverJob(const std::string& name,
                               std::vector<base::Kept> found) {
  absl::btree_map<int, base::Kept> workers;
  ASSIGN_OR_RETURN(std::unique_ptr<JobKeep> keep,
                   JobKeep::Open(leaves_.device, keeping_.vault, name,
                                 std::move(found), &workers));
  const JobRecord& record = *keep->record();
  RETURN_IF_ERROR(CheckFormats(record.job().formats()));
  session::Sessions::TakenOver taken;
  ASSIGN_OR_RETURN(taken.request, service::FromProto(record.job().request()));
  if (taken.request.job.name != name || record.job().chunk_bytes() == 0) {
    return absl::DataLossError("the record is another job's");
  }
  taken.uid = record.job().uid();
  taken.chunk_bytes = record.job().chunk_bytes();
  const int num_workers = taken.request.placement.local_world_size;
  for (int l = 0; l < num_workers; ++l) {
    taken.workers.push_back({"", record.is_closed(LocalRank(l))});
    const auto it = workers.find(l);
    if (it == workers.end()) continue;
    BALLAST_FAILPOINT("daemon.adopting");
    auto key = keeping_.adopt_worker(std::move(it->second));
    if (key.ok()) taken.workers.back().key = *std::move(key);
  }
  keeps_[name] = std::move(keep);
  const auto local = sessions_->TakeOver(taken);
  if (!local.ok()) {
    for (const auto& worker : taken.workers) {
      sessions_->OnDisconnected(worker.key, local.status());
    }
    return local.status();
  }
  BALLAST_FAILPOINT("daemon.restored");
  const absl::Status gone_on = runtimes_[name]->TakeOver();
  if (!gone_on.ok()) sessions_->FailJob(*local, gone_on);
  return absl::OkStatus();
}

// Whoever had closed the job when the last daemon ended does not say it again.
void Node::OnWentOn(session::LocalJob* job) {
  if (HasWorkers(*job) || !job->is_over()) return;
  const bool is_closed = job->layout().topology().num_nodes > 1 &&
                         job->num_closed() == job->local_world_size();
  sessions_->FailJob(job, is_closed
                              ? absl::OkStatus()
                              : absl::CancelledError(
                                    "its workers had closed it, or are gone"));
}

void Node::OnRefusal(const std::string& name, const absl::Status& why) {
  if (!why.ok() && leaves_.metrics != nullptr) {
    leaves_.metrics->counter(metrics::Family::kKeeperRefusals)->Increment();
  }
  const std::string job = name.substr(0, name.find('/'));
  const auto it = keeps_.find(job);
  if (it == keeps_.end()) return;
  const std::string news = it->second->OnRefusal(why);
  if (!news.empty()) Warn(absl::StrCat("job=", job, " ", news));
}

// Whole: what the vault has no room for, the next daemon would miss.
bool Node::IsKept(const session::LocalJob& job) const {
  const auto it = keeps_.find(job.spec().name);
  return it != keeps_.end() && job.has_begun() &&
         it->second->vault()->CheckAllHeld().ok();
}

void Node::EndUnkept(const absl::Status& why) {
  for (session::LocalJob* const job : sessions_->jobs()) {
    if (!IsKept(*job)) sessions_->FailJob(job, why);
  }
}

bool Node::has_unkept() const {
  return std::ranges::any_of(runtimes_, [this](const auto& entry) {
    return !IsKept(entry.second->job());
  });
}

}  // namespace ballast::daemon
