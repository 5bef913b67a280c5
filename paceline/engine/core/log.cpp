#include "paceline/engine/core/log.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/system/io.h"

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

class DescriptorSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit DescriptorSink(int fd) : fd_(fd) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    (void)write_some(fd_, as_bytes(std::string_view(line.data(), line.size())));
  }
  void flush_() override {}

  const int fd_;
};

}  // namespace

int rank() { return current_rank; }

void set_rank(int rank) {
  current_rank = rank;
  logger().set_pattern(rank < 0
                           ? "%H:%M:%S.%e %^%l%$ paceline: %v"
                           : "%H:%M:%S.%e %^%l%$ paceline [rank " + std::to_string(rank) + "]: %v");
}

void write_to(int fd) {
  spdlog::sink_ptr sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  if (fd != STDERR_FILENO) sink = std::make_shared<DescriptorSink>(fd);
  logger().sinks() = {std::move(sink)};
  set_rank(rank());  // gives the sink the pattern
}

void write(Level level, const std::string& message) {
  logger().log(static_cast<spdlog::level::level_enum>(level), message);
}

}  // namespace paceline::log
