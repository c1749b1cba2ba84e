#include "server/daemon/limited_log.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast::daemon {

LimitedLog::LimitedLog(base::Executor* executor, std::string what,
                       std::function<void(const std::string&)> log)
    : executor_(executor), what_(std::move(what)), log_(std::move(log)) {}

LimitedLog::~LimitedLog() { executor_->Cancel(timer_); }

void LimitedLog::Log(const std::string& event) {
  if (timer_ == 0) {
    timer_ = executor_->PostAfter(kWindow, [this] { OnWindowEnd(); });
  }
  if (++count_ <= kLines) log_(event);
}

void LimitedLog::OnWindowEnd() {
  timer_ = 0;
  const int left_out = std::exchange(count_, 0) - kLines;
  if (left_out <= 0) return;
  log_(absl::StrCat("log limited: ", what_, ", left_out=", left_out,
                    " within=", absl::FormatDuration(kWindow)));
}

}  // namespace ballast::daemon
