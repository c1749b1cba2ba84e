#include "server/daemon/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <utility>

namespace ballast::daemon {

void SetUpLog(const std::string& level) {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>("ballastd", std::move(sink));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %-7l %v",
                      spdlog::pattern_time_type::utc);
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
}

void LogInfo(const std::string& event) { spdlog::info("{}", event); }
void LogWarn(const std::string& event) { spdlog::warn("{}", event); }
void LogError(const std::string& event) { spdlog::error("{}", event); }

}  // namespace ballast::daemon
