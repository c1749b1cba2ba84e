#include "client/ctl/doctor.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/render.h"

namespace ballast::ctl {
namespace {

// A job that has stood for so long is more than slow.
constexpr double kStandsSeconds = 30;
// Of elements that were cut off, and of steps that came to nothing.
constexpr double kMuchClipped = 0.01;
constexpr double kManySteps = 0.01;
// A link that is worth a look: every exchange takes as long as the slowest.
constexpr double kSlowerLink = 1.5;

std::string_view Name(Finding::State state) {
  switch (state) {
    case Finding::State::kOk:
      return "ok";
    case Finding::State::kWarning:
      return "warning";
    case Finding::State::kWrong:
      return "wrong";
    case Finding::State::kSkipped:
      return "skipped";
  }
  return "unknown";
}

using State = Finding::State;

class Examination {
 public:
  void set_subject(std::string subject) { subject_ = std::move(subject); }
  void Add(const char* check, State state, std::string text,
           std::string fix = "") {
    findings_.push_back(
        {subject_, check, state, std::move(text), std::move(fix)});
  }
  std::vector<Finding> Take() { return std::move(findings_); }

 private:
  std::string subject_;
  std::vector<Finding> findings_;
};

void ExamineDaemon(const v1::StatusReply& status, Examination* out) {
  if (status.state() == "serving") {
    out->Add(
        "state", State::kOk,
        absl::StrCat("serving for ", FormatSeconds(status.uptime_seconds())));
  } else {
    out->Add("state", State::kWarning,
             absl::StrCat(status.state(), ": no worker is let in"),
             "start the next daemon when this one has ended");
  }
  if (status.keeper() == "connected") {
    out->Add("keeper", State::kOk, "holds jobs over a restart of the daemon");
  } else if (status.keeper() == "lost") {
    out->Add("keeper", State::kWrong,
             "does not answer: a restart of the daemon now ends its jobs",
             "start ballast-keeper at keeper.socket; the daemon's log says why "
             "it went");
  } else {
    out->Add("keeper", State::kWarning,
             "none: a restart of the daemon ends its jobs",
             "set keeper.socket and keeper.program");
  }
  if (!status.snapshots_error().empty()) {
    out->Add(
        "snapshots", State::kWrong,
        absl::StrCat("nothing is saved or loaded: ", status.snapshots_error()),
        "mend or mount snapshots.directory; it is looked at again by "
        "itself");
  }
}

void ExamineProgress(const v1::GetJobReply& job, Examination* out) {
  const v1::JobSummary& summary = job.summary();
  const double seconds =
      static_cast<double>(job.steps_since_progress_ms()) / 1000;
  if (summary.state() == "failed") {
    return out->Add("progress", State::kWrong,
                    absl::StrCat("failed: ", job.last_failure()),
                    "open it again with all ranks: it goes on from its newest "
                    "replica or snapshot, if there is one");
  }
  if (summary.waiting_for().empty()) {
    return out->Add("progress", State::kOk,
                    absl::StrCat(summary.state(), ", step ",
                                 summary.open_step(), " is open"));
  }
  const bool stands = seconds >= kStandsSeconds;
  const bool runs = summary.state() == "running";
  std::string text =
      absl::StrCat(summary.state(), ", waits: ", summary.waiting_for());
  if (!stands && runs) return out->Add("progress", State::kOk, std::move(text));
  // A step may be long.
  out->Add("progress", stands && !runs ? State::kWrong : State::kWarning,
           std::move(text),
           "see what those it waits for do; a rank that is gone is replaced "
           "by a worker with its place (rank, world size, job)");
}

void ExamineKeeping(const v1::JobSummary& job, Examination* out) {
  if (job.not_kept().empty()) return;
  out->Add("keeping", State::kWrong,
           absl::StrCat("a restart of the daemon ends it: ", job.not_kept()),
           "raise the limit of descriptors (LimitNOFILE) of ballast-keeper and "
           "start it again, or close other jobs: it is offered each second");
}

void ExamineWorkers(const v1::GetJobReply& job, Examination* out) {
  for (const v1::WorkerStatus& worker : job.workers()) {
    if (worker.process() != "stopped") continue;
    out->Add("workers", State::kWrong,
             absl::StrCat("rank ", worker.rank(), " (pid ", worker.pid(),
                          ") is stopped (SIGSTOP or a debugger)"),
             absl::StrCat("kill -CONT ", worker.pid()));
  }
}

void ExamineLinks(const v1::GetJobReply& job, Examination* out) {
  if (job.nodes_size() == 0) return;
  int num_bad = 0;
  for (const v1::PeerNode& node : job.nodes()) {
    if (node.state() == "self" || node.state() == "ready") continue;
    ++num_bad;
    out->Add("links",
             node.state() == "connecting" ? State::kWarning : State::kWrong,
             absl::StrCat("node ", node.node(), " is ", node.state()),
             absl::StrCat("look at its ballastd; if it is gone for good: "
                          "ballastctl job ",
                          job.summary().name(), " --adopt, at node 0"));
  }
  if (num_bad == 0) {
    out->Add("links", State::kOk, absl::StrCat(job.nodes_size(), " nodes"));
  }
  const double slowest = job.slowest_link_bytes_per_second();
  const double own = job.link_bytes_per_second();
  if (slowest <= 0 || own <= 0) return;
  const std::string speeds = absl::StrFormat(
      "%.3g MB/s from here, %.3g from the slowest node, measured once, "
      "when the links were made",
      own / 1e6, slowest / 1e6);
  if (own < kSlowerLink * slowest) {
    return out->Add("link speed", State::kOk, speeds);
  }
  out->Add("link speed", State::kWarning,
           absl::StrCat(speeds, "; all wait for the slowest"),
           "ask the other daemons the same: the slow one's own two rates are "
           "equal (its processor may have been busy then)");
}

// I24: a compressed path that is slower than the exact one says so.
void ExamineExchange(const v1::GetJobReply& job, Examination* out) {
  if (job.quality_size() == 0) return;
  const double ratio = job.exact_ratio();
  if (ratio <= 0) {
    out->Add("exchange", State::kSkipped,
             "whether exact would be faster is not known yet (16 steps between "
             "nodes)");
  } else if (ratio < 1) {
    out->Add("exchange", State::kWarning,
             absl::StrFormat("exact would take %.2g of the time between nodes: "
                             "this link is faster than the codecs",
                             ratio),
             "exchange=exact");
  } else {
    out->Add("exchange", State::kOk,
             absl::StrFormat(
                 "exact would take %.3g times as long between nodes", ratio));
  }
}

void ExamineErrors(const v1::GetJobReply& job, Examination* out) {
  for (const v1::PathQuality& path : job.quality()) {
    if (path.num_wider() > 0) {
      std::string text =
          absl::StrCat(path.num_wider(), " tensors of ", path.path(),
                       " cross wider than asked for, by max_relative_error=",
                       job.max_relative_error());
      if (path.wider_size() > 0) {
        absl::StrAppend(&text, ", ", path.wider(0).tensor(), " by ",
                        path.wider(0).codec(), " for one");
      }
      out->Add("error budget", State::kWarning, std::move(text),
               "a wider codec for them (overrides), a narrower one for the "
               "rest, or a greater max_relative_error");
    }
    if (path.clipped_share() > kMuchClipped) {
      out->Add("clipping", State::kWarning,
               absl::StrFormat("%.2g %% of %s is cut off at the largest code",
                               100 * path.clipped_share(), path.path()),
               "gradients.range=sym, which cuts nothing off");
    } else if (path.sampled() > 0) {
      out->Add(
          "errors", State::kOk,
          absl::StrFormat("%.3g of %s", path.relative_error(), path.path()));
    }
  }
}

void ExamineSteps(const v1::GetJobReply& job, Examination* out) {
  const auto of = [&job](int64_t count) {
    return absl::StrCat(count, " of ", job.steps_committed(), " steps");
  };
  const double many = kManySteps * static_cast<double>(std::max<int64_t>(
                                       job.steps_committed(), 100));
  if (static_cast<double>(job.steps_skipped()) > many) {
    out->Add("steps", State::kWarning,
             absl::StrCat(of(job.steps_skipped()),
                          " were skipped: a gradient was not finite"),
             "a lower learning rate or loss scale, or gradient_clipping");
  }
  if (static_cast<double>(job.steps_aborted()) > many) {
    out->Add("steps", State::kWarning,
             absl::StrCat(job.steps_aborted(),
                          " steps were aborted and computed again"),
             "the daemon's log names the reasons");
  }
  const uint64_t bad = job.weight_chunks_bad();
  if (bad > 0) {
    const bool is_healed = job.weight_chunks_healed() >= bad;
    out->Add("weights", is_healed ? State::kWarning : State::kWrong,
             absl::StrCat(bad, " chunks were damaged here, ",
                          job.weight_chunks_healed(), " healed"),
             "bits that change by themselves are a fault of memory or of a "
             "link: test both");
  }
}

void ExamineCopies(const v1::GetJobReply& job, Examination* out) {
  const v1::SnapshotStatus& snapshots = job.snapshots();
  const v1::ReplicaStatus& replicas = job.replicas();
  if (!snapshots.enabled() && !replicas.enabled()) {
    out->Add("copies", State::kWarning,
             "neither snapshots nor replicas: the loss of a node ends the job "
             "for good",
             "set snapshots.directory, or replicas.every_steps on all nodes");
  }
  if (!snapshots.other_life().empty()) {
    out->Add("snapshots", State::kWrong,
             "none is saved: another life of the job writes in its directory",
             snapshots.other_life());
  } else if (!snapshots.last_error().empty()) {
    out->Add("snapshots", State::kWrong, snapshots.last_error(),
             absl::StrCat("mend that; then ballastctl checkpoint save ",
                          job.summary().name()));
  } else if (snapshots.skipped() > 0) {
    out->Add("snapshots", State::kWarning,
             absl::StrCat(snapshots.skipped(),
                          " were due while one was being written"),
             "raise snapshots.every_steps or snapshots.every, or the bound "
             "snapshots.max_bytes_per_second");
  } else if (snapshots.enabled()) {
    out->Add("snapshots", State::kOk,
             absl::StrCat(snapshots.saved(), " saved"));
  }
  if (!replicas.last_error().empty()) {
    out->Add("replicas", State::kWrong, replicas.last_error(),
             "the next one is made by itself; if it fails, too, mend that");
  } else if (replicas.skipped() > 0) {
    out->Add("replicas", State::kWarning,
             absl::StrCat(replicas.skipped(),
                          " were due while a copy was being made"),
             "raise replicas.every_steps");
  } else if (replicas.enabled()) {
    out->Add("replicas", State::kOk,
             absl::StrCat("step ", replicas.last_step(), ", ",
                          replicas.lag_steps(), " behind"));
  }
  if (job.gather().refusals() > 0) {
    out->Add(
        "gathers", State::kWarning,
        absl::StrCat(job.gather().refusals(), " were refused for lack of room"),
        "release weights earlier, or raise resident_bytes");
  }
}

}  // namespace

std::vector<Finding> Examine(const v1::StatusReply& status,
                             std::span<const v1::GetJobReply> jobs) {
  Examination examination;
  examination.set_subject("daemon");
  ExamineDaemon(status, &examination);
  for (const v1::GetJobReply& job : jobs) {
    examination.set_subject(absl::StrCat("job ", job.summary().name()));
    ExamineProgress(job, &examination);
    ExamineKeeping(job.summary(), &examination);
    ExamineWorkers(job, &examination);
    ExamineLinks(job, &examination);
    ExamineExchange(job, &examination);
    ExamineErrors(job, &examination);
    ExamineSteps(job, &examination);
    ExamineCopies(job, &examination);
  }
  return examination.Take();
}

bool IsWell(std::span<const Finding> findings) {
  return std::ranges::none_of(findings, [](const Finding& finding) {
    return finding.state == Finding::State::kWrong;
  });
}

std::string Render(std::span<const Finding> findings) {
  size_t width = 0;
  for (const Finding& finding : findings) {
    width = std::max(width, finding.subject.size());
  }
  std::string text;
  for (const Finding& finding : findings) {
    absl::StrAppendFormat(&text, "%-8s %-*s %-12s %s\n", Name(finding.state),
                          static_cast<int>(width), finding.subject,
                          finding.check, finding.text);
    if (!finding.fix.empty()) {
      absl::StrAppendFormat(&text, "%*s -> %s\n", static_cast<int>(width + 22),
                            "", finding.fix);
    }
  }
  return text;
}

nlohmann::ordered_json ToJson(std::span<const Finding> findings) {
  auto list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"subject", finding.subject},
                    {"check", finding.check},
                    {"state", std::string(Name(finding.state))},
                    {"text", finding.text},
                    {"fix", finding.fix}});
  }
  return list;
}

}  // namespace ballast::ctl
