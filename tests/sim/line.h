// A line of a scenario, word by word; errors name the word that is wrong.
#ifndef TESTS_SIM_LINE_H_
#define TESTS_SIM_LINE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

namespace ballast::sim {

// Takes words from the front of a line.
class Line {
 public:
  explicit Line(std::vector<std::string> words) : words_(std::move(words)) {}
  bool empty() const { return next_ == words_.size(); }
  bool Is(std::string_view word) {
    if (empty() || words_[next_] != word) return false;
    ++next_;
    return true;
  }
  std::string Take() { return empty() ? "" : words_[next_++]; }
  std::string Rest() {
    const std::vector<std::string> rest(
        words_.begin() + static_cast<int64_t>(next_), words_.end());
    next_ = words_.size();
    return absl::StrJoin(rest, " ");
  }

 private:
  std::vector<std::string> words_;
  size_t next_ = 0;
};

template <typename T>
absl::StatusOr<T> Integer(const std::string& word) {
  T value;
  if (!absl::SimpleAtoi(word, &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", word, "\" is not a number"));
  }
  return value;
}

inline absl::StatusOr<double> Real(const std::string& word) {
  double value;
  if (!absl::SimpleAtod(word, &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", word, "\" is not a number"));
  }
  return value;
}

inline absl::StatusOr<absl::Duration> Time(const std::string& word) {
  absl::Duration value;
  if (!absl::ParseDuration(word, &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", word, "\" is not a duration: say 20ms or 2s"));
  }
  return value;
}

}  // namespace ballast::sim

#endif  // TESTS_SIM_LINE_H_
