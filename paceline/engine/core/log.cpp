#include "paceline/engine/core/log.h"

#include <atomic>
#include <cstdlib>
#include <memory>

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace paceline::log {
namespace {

std::shared_ptr<spdlog::logger> make_logger() {
  auto logger = std::make_shared<spdlog::logger>(
      "paceline", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%H:%M:%S.%e %^%l%$ paceline: %v");
  const char* level = std::getenv("PACELINE_LOG_LEVEL");
  logger->set_level(level ? spdlog::level::from_str(level) : spdlog::level::warn);
  return logger;
}

// Created at first use and never destroyed, because any destructor may log.
spdlog::logger& logger() {
  static const auto* instance = new std::shared_ptr<spdlog::logger>(make_logger());
  return **instance;
}

std::atomic<int> current_rank{-1};

}  // namespace

int rank() { return current_rank; }

void set_rank(int rank) {
  current_rank = rank;
  logger().set_pattern(rank < 0
                           ? "%H:%M:%S.%e %^%l%$ paceline: %v"
                           : "%H:%M:%S.%e %^%l%$ paceline [rank " + std::to_string(rank) + "]: %v");
}

void write(Level level, const std::string& message) {
  logger().log(static_cast<spdlog::level::level_enum>(level), message);
}

}  // namespace paceline::log
