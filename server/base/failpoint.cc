#include "server/base/failpoint.h"

#include <signal.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/base/mutex.h"
#include "server/base/names.h"
#include "server/base/random.h"

namespace ballast::base {
namespace {

enum class Action { kKill, kError, kBreak };

struct Rule {
  Action action = Action::kKill;
  uint64_t at_hit = 0;  // 0: at every hit
  uint32_t percent = 100;
  uint64_t num_hits = 0;
};

// The process-wide table: a failpoint is a place in the program, so there is
// one of each per process; injecting it would change every signature.
struct Table {
  Mutex mutex;
  std::map<std::string, Rule, std::less<>> rules ABSL_GUARDED_BY(mutex);
  SeededRandom random ABSL_GUARDED_BY(mutex){0};
  std::function<void(std::string_view)> death ABSL_GUARDED_BY(mutex);
};

Table& TheTable() {
  static Table* const table = std::make_unique<Table>().release();
  return *table;
}

absl::Status Malformed(absl::string_view entry, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("failpoint ", Quoted({entry.data(), entry.size()}), ": ",
                   why, "; write NAME=kill|error|break[@HIT][%PERCENT]"));
}

absl::StatusOr<std::pair<std::string, Rule>> Parse(absl::string_view entry) {
  const std::vector<absl::string_view> sides = absl::StrSplit(entry, '=');
  if (sides.size() != 2 || sides[0].empty()) {
    return Malformed(entry, "not one '='");
  }
  Rule rule;
  absl::string_view action = sides[1];
  if (const size_t at = action.find('%'); at != action.npos) {
    if (!absl::SimpleAtoi(action.substr(at + 1), &rule.percent) ||
        rule.percent > 100) {
      return Malformed(entry, "percent is not 0 to 100");
    }
    action = action.substr(0, at);
  }
  if (const size_t at = action.find('@'); at != action.npos) {
    if (!absl::SimpleAtoi(action.substr(at + 1), &rule.at_hit) ||
        rule.at_hit == 0) {
      return Malformed(entry, "hit is not a positive number");
    }
    action = action.substr(0, at);
  }
  if (action == "error") {
    rule.action = Action::kError;
  } else if (action == "break") {
    rule.action = Action::kBreak;
  } else if (action != "kill") {
    return Malformed(entry, "unknown action");
  }
  return std::make_pair(std::string(sides[0]), rule);
}

// What happens at this hit; none: nothing.
std::optional<Action> Hit(std::string_view name) {
  Table& table = TheTable();
  MutexLock lock(&table.mutex);
  const auto it = table.rules.find(name);
  if (it == table.rules.end()) return std::nullopt;
  Rule& rule = it->second;
  ++rule.num_hits;
  if (rule.at_hit != 0 && rule.num_hits != rule.at_hit) return std::nullopt;
  if (table.random.Below(100) >= rule.percent) return std::nullopt;
  return rule.action;
}

void Die(std::string_view name) {
  std::function<void(std::string_view)> death;
  {
    Table& table = TheTable();
    MutexLock lock(&table.mutex);
    death = table.death;
  }
  if (death == nullptr) raise(SIGKILL);
  death(name);
}

}  // namespace

absl::Status ConfigureFailpoints(std::string_view spec, uint64_t seed) {
  std::map<std::string, Rule, std::less<>> rules;
  for (absl::string_view entry :
       absl::StrSplit(absl::string_view(spec.data(), spec.size()), ';',
                      absl::SkipEmpty())) {
    auto rule = Parse(entry);
    if (!rule.ok()) return rule.status();
    if (!rules.insert(*std::move(rule)).second) {
      return Malformed(entry, "named twice");
    }
  }
  Table& table = TheTable();
  MutexLock lock(&table.mutex);
  table.rules = std::move(rules);
  table.random = SeededRandom(seed);
  return absl::OkStatus();
}

void SetDeath(std::function<void(std::string_view name)> death) {
  Table& table = TheTable();
  MutexLock lock(&table.mutex);
  table.death = std::move(death);
}

absl::Status HitFailpoint(std::string_view name) {
  const std::optional<Action> action = Hit(name);
  if (action == Action::kKill) Die(name);
  if (action != Action::kError) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("failpoint ", absl::string_view(name.data(), name.size())));
}

bool IsSabotaged(std::string_view name) {
  return Hit(name) == std::optional(Action::kBreak);
}

}  // namespace ballast::base
