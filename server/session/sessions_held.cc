// Jobs that are held for workers which are missing: how long, and what becomes
// of their state.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/names.h"
#include "server/session/sessions.h"

namespace ballast::session {
namespace {

// Until a job that goes on elsewhere is asked for its last state again.
constexpr absl::Duration kSaveAgain = absl::Milliseconds(200);
// How long the state of a job whose hold has passed may take to be stored:
// other nodes may never answer.
constexpr absl::Duration kSaveHeldLimit = absl::Minutes(5);
// Then, or where it could not be stored.
constexpr absl::Duration kSaveHeldAgain = absl::Minutes(1);

}  // namespace

void Sessions::ArmHold(Job* job) {
  job->not_stored.clear();
  const absl::Duration hold = job->local->spec().hold;
  ArmTimer(job, hold > absl::ZeroDuration() ? hold : options_.default_hold);
}

// With a snapshot, if they are kept; who comes meanwhile comes to the next job.
void Sessions::EndHeld(Job* job) {
  LocalJob* const local = job->local.get();
  job->is_saving = true;
  ArmTimer(job, kSaveHeldLimit);
  host_->SaveHeld(local, [this, local, attempt = ++job->save_attempts,
                          alive = std::weak_ptr<bool>(alive_)](
                             absl::StatusOr<std::string> path) {
    Job* const job = alive.lock() == nullptr ? nullptr : JobOfLocal(local);
    if (job == nullptr || attempt != job->save_attempts) return;
    OnSavedHeld(job, path);
  });
}

void Sessions::OnSaveHeldLate(Job* job) {
  ++job->save_attempts;  // whatever it still comes to
  OnSavedHeld(
      job, absl::DeadlineExceededError(absl::StrCat(
               "that took more than ", absl::FormatDuration(kSaveHeldLimit))));
}

// This is the only copy of what was trained: it does not go before it is
// stored, but where another life of the job has taken its place.
void Sessions::OnSavedHeld(Job* job, const absl::StatusOr<std::string>& path) {
  if (job->is_ending) return;
  const LocalJob& local = *job->local;
  if (!path.ok() && !absl::IsAlreadyExists(path.status())) {
    job->is_saving = false;
    const std::string why(path.status().message());
    const bool is_news = std::exchange(job->not_stored, why).empty();
    if (is_news && options_.log != nullptr) {
      options_.log(absl::StrCat(
          "job stays held job=", local.spec().name,
          " reason=\"its state could not be stored: ", why,
          "\": mend that, it is tried again every ",
          absl::FormatDuration(kSaveHeldAgain), "; or bring its workers back"));
    }
    ArmTimer(job, kSaveHeldAgain);
    return Run(std::exchange(job->waiters, {}));
  }
  std::string stored;
  if (!path.ok()) {
    stored = absl::StrCat("; its state is not stored: ",
                          std::string(path.status().message()));
  } else if (!path->empty()) {
    stored = absl::StrCat("; its state is in snapshot ", *path);
  }
  End(job, absl::UnavailableError(absl::StrCat(
               "job ", base::Quoted(local.spec().name),
               " was held as long as it may be: ", local.Missing(), stored)));
}

std::string Sessions::NotStored(std::string_view name) const {
  const auto it = jobs_.find(std::string(name));
  if (it == jobs_.end() || it->second->local->num_missing() == 0) return "";
  return it->second->not_stored;
}

void Sessions::SaveLast(Job* job) {
  job->is_saving = true;
  LocalJob* const local = job->local.get();
  host_->SaveLast(local, [this, local, alive = std::weak_ptr<bool>(alive_)](
                             absl::Status saved) {
    if (alive.lock() != nullptr) OnSavedLast(local, saved);
  });
}

void Sessions::OnSavedLast(LocalJob* local, const absl::Status& saved) {
  Job* const job = JobOfLocal(local);
  if (job == nullptr || job->is_ending) return;
  if (!absl::IsFailedPrecondition(saved)) {
    return End(job, absl::AbortedError(absl::StrCat(
                        "its workers left, and others came in another shape",
                        saved.ok() ? "" : "; its last state is not kept: ",
                        std::string(saved.message()))));
  }
  // Another node may not have noticed yet that its workers are gone.
  if (local->num_attached() == 0 && --job->saves_left > 0) {
    job->timer = executor_->PostAfter(
        kSaveAgain, [this, local, alive = std::weak_ptr<bool>(alive_)] {
          Job* const again =
              alive.lock() == nullptr ? nullptr : JobOfLocal(local);
          if (again == nullptr || again->is_ending) return;
          again->timer = 0;
          SaveLast(again);
        });
    return;
  }
  job->is_saving = false;
  if (local->num_missing() > 0) ArmHold(job);
  if (options_.log != nullptr) {
    options_.log(absl::StrCat("job goes on job=", local->spec().name,
                              " reason=\"", std::string(saved.message()),
                              "\""));
  }
  Run(std::exchange(job->waiters, {}));
}

}  // namespace ballast::session
