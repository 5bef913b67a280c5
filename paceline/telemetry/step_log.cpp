#include "paceline/telemetry/step_log.h"

#include <cstdlib>

#include <fmt/format.h>

namespace paceline {

StepLog::StepLog() {
  const char* folder = std::getenv("PACELINE_STEP_LOG");
  if (folder == nullptr || *folder == '\0') return;
  const char* rank = std::getenv("RANK");
  log_ = MetricsLog(fmt::format("{}/rank-{:03}.jsonl", folder, rank ? std::atoi(rank) : 0));
}

void StepLog::model(std::int64_t parameter_bytes) {
  log_.write("model", {{"parameter_bytes", parameter_bytes}});
}

void StepLog::step(std::int64_t samples, double seconds, double communication_seconds) {
  log_.write(
      "step",
      {{"samples", samples}, {"seconds", seconds}, {"communication", communication_seconds}});
  gauge_.step(samples, seconds, communication_seconds);
}

}  // namespace paceline
