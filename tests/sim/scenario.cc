#include "tests/sim/scenario.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/base/status_macros.h"

namespace ballast::sim {
namespace {

using Words = std::vector<std::string>;

template <typename T>
absl::StatusOr<T> Integer(const std::string& word) {
  T value;
  if (!absl::SimpleAtoi(word, &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", word, "\" is not a number"));
  }
  return value;
}

absl::StatusOr<double> Real(const std::string& word) {
  double value;
  if (!absl::SimpleAtod(word, &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", word, "\" is not a number"));
  }
  return value;
}

absl::StatusOr<absl::Duration> Time(const std::string& word) {
  absl::Duration value;
  if (!absl::ParseDuration(word, &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", word, "\" is not a duration"));
  }
  return value;
}

// Takes words from the front of a line.
class Line {
 public:
  explicit Line(Words words) : words_(std::move(words)) {}
  bool empty() const { return next_ == words_.size(); }
  bool Is(std::string_view word) {
    if (empty() || words_[next_] != word) return false;
    ++next_;
    return true;
  }
  std::string Take() { return empty() ? "" : words_[next_++]; }
  std::string Rest() {
    Words rest(words_.begin() + static_cast<int64_t>(next_), words_.end());
    next_ = words_.size();
    return absl::StrJoin(rest, " ");
  }

 private:
  Words words_;
  size_t next_ = 0;
};

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

// [chunk C | owner | member] [early] [unseen] [maybe]
absl::Status ParseCorruption(Line* line, Fault* fault) {
  if (line->Is("chunk")) {
    ASSIGN_OR_RETURN(fault->chunk, Integer<size_t>(line->Take()));
  } else if (line->Is("owner")) {
    fault->is_own = true;
  } else if (line->Is("member")) {
    fault->is_own = false;
  }
  fault->is_early = line->Is("early");
  fault->is_unseen = line->Is("unseen");
  fault->may_miss = line->Is("maybe");
  if (fault->is_unseen && !fault->is_early) {
    return absl::InvalidArgumentError("only what is early can be unseen");
  }
  return absl::OkStatus();
}

// In the order of Fault::Kind.
constexpr std::string_view kFaultNames[] = {
    "nan", "infinity", "lr",      "crash",      "kill",      "slow",
    "cut", "corrupt",  "restart", "disk_fails", "disk_full", "power_fails"};
static_assert(std::size(kFaultNames) == Fault::kNumKinds);

// at step S WHAT (rank R | node N) [value] [for|back after DURATION]
absl::Status ParseFault(Line* line, Scenario* scenario) {
  Fault fault;
  if (!line->Is("step")) return absl::InvalidArgumentError("at step S …");
  ASSIGN_OR_RETURN(fault.step, Integer<int64_t>(line->Take()));
  const auto* const name = std::ranges::find(kFaultNames, line->Take());
  fault.kind = static_cast<Fault::Kind>(name - std::begin(kFaultNames));
  if (fault.kind >= Fault::kFirstOfNoStep) {
    return absl::InvalidArgumentError("unknown fault");
  }
  const bool is_node = line->Is("node");
  if (!is_node && !line->Is("rank")) {
    return absl::InvalidArgumentError("rank R or node N is missing");
  }
  if (fault.kind == Fault::Kind::kCorrupt && !is_node) {
    return absl::InvalidArgumentError("corrupt node N");
  }
  ASSIGN_OR_RETURN(fault.where, Integer<int>(line->Take()));
  const int bound = is_node ? scenario->nodes : scenario->world_size();
  if (fault.where < 0 || fault.where >= bound) {
    return absl::InvalidArgumentError("there is no such rank or node");
  }
  if (fault.kind == Fault::Kind::kValue) {
    ASSIGN_OR_RETURN(fault.value, Real(line->Take()));
  }
  if (fault.kind == Fault::Kind::kCorrupt) {
    RETURN_IF_ERROR(ParseCorruption(line, &fault));
  }
  if (line->Is("back")) {
    ASSIGN_OR_RETURN(fault.back_after, Time(line->Take()));
  }
  scenario->faults.push_back(fault);
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
  } else if (word == "at") {
    RETURN_IF_ERROR(ParseFault(line, scenario));
  } else if (word == "expect") {
    scenario->expect_failure = line->Rest();
  } else {
    return absl::InvalidArgumentError("unknown word");
  }
  if (!line->empty()) return absl::InvalidArgumentError("too many words");
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(Fault::Kind kind) {
  return kFaultNames[static_cast<size_t>(kind)];
}

absl::StatusOr<Scenario> ParseScenario(std::string_view name,
                                       std::string_view text) {
  Scenario scenario;
  scenario.name = std::string(name);
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
    const absl::Status status = ParseLine(&parsed, &scenario);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          scenario.name, ":", number, ": ", status.message(), ": ", line));
    }
  }
  if (scenario.tensors.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(scenario.name, ": a job needs a tensor"));
  }
  return scenario;
}

}  // namespace ballast::sim
