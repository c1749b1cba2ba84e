#include "tests/sim/scenario.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/base/status_macros.h"
#include "tests/sim/line.h"

namespace ballast::sim {
namespace {

using Words = std::vector<std::string>;

absl::StatusOr<std::vector<int64_t>> Shape(const std::string& word) {
  std::vector<int64_t> shape;
  if (word == "scalar") return shape;
  for (const std::string& part : Words(absl::StrSplit(word, 'x'))) {
    ASSIGN_OR_RETURN(const int64_t size, Integer<int64_t>(part));
    shape.push_back(size);
  }
  return shape;
}

absl::Status ParseTensor(Line* line, Scenario* scenario) {
  layout::TensorSpec tensor;
  tensor.name = line->Take();
  const std::string dtype = line->Take();
  bool is_known = false;
  for (const auto candidate :
       {kernels::DType::kFloat32, kernels::DType::kBFloat16,
        kernels::DType::kFloat16}) {
    if (dtype != kernels::Name(candidate)) continue;
    tensor.dtype = candidate;
    is_known = true;
  }
  if (!is_known) {
    return absl::InvalidArgumentError(absl::StrCat("dtype \"", dtype, "\""));
  }
  ASSIGN_OR_RETURN(tensor.shape, Shape(line->Take()));
  while (!line->empty()) {
    if (line->Is("frozen")) {
      tensor.trainable = false;
    } else if (line->Is("group")) {
      ASSIGN_OR_RETURN(tensor.group, Integer<int>(line->Take()));
    } else {
      return absl::InvalidArgumentError("tensor: frozen or group G");
    }
  }
  scenario->tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status ParseValues(Line* line, kernels::HyperParameters* group) {
  const std::map<std::string, double kernels::HyperParameters::*> fields = {
      {"lr", &kernels::HyperParameters::lr},
      {"beta1", &kernels::HyperParameters::beta1},
      {"beta2", &kernels::HyperParameters::beta2},
      {"eps", &kernels::HyperParameters::eps},
      {"weight_decay", &kernels::HyperParameters::weight_decay},
      {"momentum", &kernels::HyperParameters::momentum},
      {"dampening", &kernels::HyperParameters::dampening},
      {"lr_decay", &kernels::HyperParameters::lr_decay},
      {"initial_accumulator_value",
       &kernels::HyperParameters::initial_accumulator_value},
  };
  while (!line->empty()) {
    if (line->Is("nesterov")) {
      group->nesterov = true;
      continue;
    }
    const auto field = fields.find(line->Take());
    if (field == fields.end()) {
      return absl::InvalidArgumentError("an unknown hyperparameter");
    }
    ASSIGN_OR_RETURN(group->*field->second, Real(line->Take()));
  }
  return absl::OkStatus();
}

absl::Status ParseOptimizer(Line* line, Scenario* scenario) {
  const std::map<std::string, kernels::OptimizerKind> kinds = {
      {"sgd", kernels::OptimizerKind::kSgd},
      {"adam", kernels::OptimizerKind::kAdam},
      {"adamw", kernels::OptimizerKind::kAdamW},
      {"lion", kernels::OptimizerKind::kLion},
      {"adagrad", kernels::OptimizerKind::kAdagrad},
  };
  const auto kind = kinds.find(line->Take());
  if (kind == kinds.end()) return absl::InvalidArgumentError("optimizer");
  scenario->optimizer = kind->second;
  return ParseValues(line, &scenario->groups[0]);
}

absl::Status ParseLink(Line* line, Scenario* scenario) {
  transport::LinkFaults* const link = &scenario->link;
  while (!line->empty()) {
    if (line->Is("delay")) {
      ASSIGN_OR_RETURN(link->min_delay, Time(line->Take()));
      ASSIGN_OR_RETURN(link->max_delay, Time(line->Take()));
    } else if (line->Is("loss")) {
      ASSIGN_OR_RETURN(link->loss, Real(line->Take()));
    } else if (line->Is("duplicate")) {
      ASSIGN_OR_RETURN(link->duplicate, Real(line->Take()));
    } else if (line->Is("reorder")) {
      ASSIGN_OR_RETURN(link->reorder, Real(line->Take()));
    } else if (line->Is("rate")) {
      ASSIGN_OR_RETURN(link->bytes_per_second, Real(line->Take()));
    } else if (line->Is("shared")) {
      scenario->has_interfaces = true;
    } else {
      return absl::InvalidArgumentError(
          "link: delay MIN MAX, loss P, duplicate P, reorder P, rate B, "
          "shared");
    }
  }
  return absl::OkStatus();
}

// [capacity BYTES] [fails_after N [times K]]
absl::Status ParseDisk(Line* line, Scenario* scenario) {
  DiskFaults& disk = scenario->disk.emplace();
  while (!line->empty()) {
    if (line->Is("capacity")) {
      ASSIGN_OR_RETURN(disk.capacity_bytes, Integer<uint64_t>(line->Take()));
    } else if (line->Is("fails_after")) {
      ASSIGN_OR_RETURN(disk.fails_after, Integer<int64_t>(line->Take()));
      disk.failures = INT64_MAX;
      if (!line->Is("times")) continue;
      ASSIGN_OR_RETURN(disk.failures, Integer<int64_t>(line->Take()));
    } else {
      return absl::InvalidArgumentError(
          "disk: capacity BYTES, fails_after CHANGES, times K");
    }
  }
  return absl::OkStatus();
}

absl::Status ParseLine(Line* line, Scenario* scenario) {
  const std::string word = line->Take();
  if (word == "nodes") {
    ASSIGN_OR_RETURN(scenario->nodes, Integer<int>(line->Take()));
  } else if (word == "workers") {
    ASSIGN_OR_RETURN(scenario->workers, Integer<int>(line->Take()));
  } else if (word == "tensor") {
    RETURN_IF_ERROR(ParseTensor(line, scenario));
  } else if (word == "optimizer") {
    RETURN_IF_ERROR(ParseOptimizer(line, scenario));
  } else if (word == "group") {
    scenario->groups.push_back(scenario->groups[0]);
    RETURN_IF_ERROR(ParseValues(line, &scenario->groups.back()));
  } else if (word == "clip") {
    ASSIGN_OR_RETURN(scenario->clip, Real(line->Take()));
  } else if (word == "exchange") {
    scenario->exchange = line->Rest();
  } else if (word == "bucket_bytes") {
    ASSIGN_OR_RETURN(scenario->bucket_bytes, Integer<uint64_t>(line->Take()));
  } else if (word == "chunk_bytes") {
    ASSIGN_OR_RETURN(scenario->chunk_bytes, Integer<uint64_t>(line->Take()));
  } else if (word == "in_flight") {
    ASSIGN_OR_RETURN(scenario->buckets_in_flight, Integer<int>(line->Take()));
  } else if (word == "steps") {
    ASSIGN_OR_RETURN(scenario->steps, Integer<int64_t>(line->Take()));
  } else if (word == "gather" || word == "reduce") {
    auto& algorithm = word == "gather" ? scenario->gather : scenario->reduce;
    algorithm = transport::AlgorithmOf(line->Take());
    if (!algorithm.has_value()) {
      return absl::InvalidArgumentError("no such algorithm");
    }
  } else if (word == "push_order") {
    const std::string order = line->Take();
    if (order != "layout" && order != "reverse" && order != "random") {
      return absl::InvalidArgumentError("layout, reverse or random");
    }
    scenario->push_order = order == "layout"    ? PushOrder::kLayout
                           : order == "reverse" ? PushOrder::kReverse
                                                : PushOrder::kRandom;
  } else if (word == "units_at_once") {
    ASSIGN_OR_RETURN(scenario->units_at_once, Integer<int>(line->Take()));
  } else if (word == "overlap") {
    scenario->overlap = true;
  } else if (word == "hold") {
    ASSIGN_OR_RETURN(scenario->hold, Time(line->Take()));
  } else if (word == "join_timeout") {
    ASSIGN_OR_RETURN(scenario->join_timeout, Time(line->Take()));
  } else if (word == "relink") {
    ASSIGN_OR_RETURN(scenario->relink_timeout, Time(line->Take()));
  } else if (word == "adopt") {
    ASSIGN_OR_RETURN(scenario->adopt_after, Time(line->Take()));
  } else if (word == "absent") {
    if (!line->Is("rank")) return absl::InvalidArgumentError("absent rank R");
    ASSIGN_OR_RETURN(scenario->absent.emplace_back(),
                     Integer<int>(line->Take()));
  } else if (word == "snapshot_every") {
    ASSIGN_OR_RETURN(scenario->snapshot_every, Integer<int64_t>(line->Take()));
  } else if (word == "replica_every") {
    ASSIGN_OR_RETURN(scenario->replica_every, Integer<int64_t>(line->Take()));
  } else if (word == "link") {
    RETURN_IF_ERROR(ParseLink(line, scenario));
  } else if (word == "load") {
    ASSIGN_OR_RETURN(const int64_t step, Integer<int64_t>(line->Take()));
    scenario->loads[step] = line->Is("anew");
  } else if (word == "disk") {
    RETURN_IF_ERROR(ParseDisk(line, scenario));
  } else if (word == "power_fails_after") {
    ASSIGN_OR_RETURN(scenario->power_fails_after,
                     Integer<int64_t>(line->Take()));
    if (scenario->power_fails_after < 1) {
      return absl::InvalidArgumentError("1 change of the disk or more");
    }
    scenario->tears = line->Is("torn");
    if (!scenario->disk.has_value()) scenario->disk.emplace();
  } else if (word == "begins_after") {
    ASSIGN_OR_RETURN(scenario->begins_after, Integer<int64_t>(line->Take()));
  } else if (word == "at") {
    ASSIGN_OR_RETURN(scenario->faults.emplace_back(),
                     ParseFault(line, scenario->nodes, scenario->workers));
  } else if (word == "expect") {
    scenario->expect_failure = line->Rest();
  } else {
    return absl::InvalidArgumentError("unknown word");
  }
  if (!line->empty()) return absl::InvalidArgumentError("too many words");
  return absl::OkStatus();
}

absl::Status CheckFrom(const Scenario& before, const std::vector<int>& from) {
  std::set<int> seen;
  for (const int node : from) {
    if (node == -1) continue;
    if (node < 0 || node >= before.nodes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the life before has no node ", node, ": it has ",
                       before.nodes, ", from 0"));
    }
    if (!seen.insert(node).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("node ", node, " is there twice"));
    }
    for (const Fault& fault : before.faults) {
      if (fault.kind == Fault::Kind::kDaemonDies && fault.where == node) {
        return absl::InvalidArgumentError(
            absl::StrCat("node ", node, " is killed before: say new"));
      }
    }
  }
  return absl::OkStatus();
}

// then [from (N | new) …]: the life after `before`, which begins as the same
// job without what befell it.
absl::StatusOr<Scenario> ParseThen(Line* line, const Scenario& before) {
  Scenario next = before;
  next.faults.clear();
  next.expect_failure.clear();
  next.absent.clear();
  next.adopt_after = absl::InfiniteDuration();
  next.power_fails_after = 0;
  next.tears = false;
  next.begins_after = 0;
  next.from.clear();
  if (next.disk.has_value()) next.disk.emplace();
  const bool has_from = line->Is("from");
  while (has_from && !line->empty()) {
    next.from.push_back(-1);
    if (line->Is("new")) continue;
    ASSIGN_OR_RETURN(next.from.back(), Integer<int>(line->Take()));
  }
  RETURN_IF_ERROR(CheckFrom(before, next.from));
  if (has_from != (before.power_fails_after == 0) ||
      has_from == next.from.empty()) {
    return absl::InvalidArgumentError(
        "a life goes on from what nodes hold (then from 0 new …), or, on other "
        "machines, from the disk of those before it (power_fails_after N)");
  }
  if (has_from && before.replica_every == 0) {
    return absl::InvalidArgumentError(
        "without replica_every K before it no node holds anything");
  }
  if (has_from) next.nodes = static_cast<int>(next.from.size());
  return next;
}

absl::Status CheckLife(const Scenario& life) {
  if (life.tensors.empty()) {
    return absl::InvalidArgumentError("a job needs a tensor");
  }
  if (!life.from.empty() && life.nodes != static_cast<int>(life.from.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "nodes ", life.nodes, ", but \"then from\" names ", life.from.size()));
  }
  return absl::OkStatus();
}

// The first life, in which are those that follow it.
Scenario Chain(std::vector<Scenario> lives) {
  Scenario first = std::move(lives.back());
  lives.pop_back();
  while (!lives.empty()) {
    Scenario before = std::move(lives.back());
    lives.pop_back();
    before.next.push_back(std::move(first));
    first = std::move(before);
  }
  return first;
}

absl::Status ParseText(std::string_view text, std::vector<Scenario>* lives) {
  int number = 0;
  for (const absl::string_view raw :
       absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    std::string line(raw);
    ++number;
    line = line.substr(0, line.find('#'));
    Words words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.empty()) continue;
    Line parsed(std::move(words));
    absl::Status status;
    if (parsed.Is("then")) {
      status = CheckLife(lives->back());
      absl::StatusOr<Scenario> next = ParseThen(&parsed, lives->back());
      if (status.ok()) status = next.status();
      if (status.ok()) lives->push_back(*std::move(next));
    } else {
      status = ParseLine(&parsed, &lives->back());
    }
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(number, ": ", status.message(), ": ", line));
    }
  }
  absl::Status status = CheckLife(lives->back());
  if (status.ok() && lives->back().power_fails_after > 0) {
    status = absl::InvalidArgumentError(
        "what the power's failure leaves nobody looks at: say \"then\"");
  }
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat(number, ": ", status.message()));
}

}  // namespace

bool NeedsKeepers(const Scenario& scenario) {
  return scenario.has_keepers ||
         std::ranges::any_of(scenario.faults, [](const Fault& fault) {
           return fault.kind == Fault::Kind::kRestart ||
                  fault.kind == Fault::Kind::kKeeperDies;
         });
}

absl::StatusOr<Scenario> ParseScenario(std::string_view name,
                                       std::string_view text) {
  std::vector<Scenario> lives(1);
  lives[0].name = std::string(name);
  const absl::Status status = ParseText(text, &lives);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(name), ":", status.message()));
  }
  return Chain(std::move(lives));
}

}  // namespace ballast::sim
