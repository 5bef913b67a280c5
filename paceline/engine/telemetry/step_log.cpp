#include "paceline/engine/telemetry/step_log.h"

#include <atomic>

#include <fmt/format.h>

#include "paceline/engine/telemetry/record_file.h"
#include "paceline/engine/telemetry/step_gauge.h"

namespace paceline {

namespace {

// Whether some log of this process counts; all logs of a process share its files.
std::atomic<bool> taken{false};

MetricsLog open_log() {
  const auto folder = record_folder("PACELINE_STEP_LOG");
  if (!folder) return {};
  return MetricsLog(fmt::format("{}/rank-{:03}.jsonl", *folder, rank_of_process()));
}

}  // namespace

StepLog::StepLog() {
  if (taken.load()) return;
  log_ = open_log();
  if (!taken.exchange(true)) gauge_ = std::make_shared<StepGauge>();
}

StepLog::~StepLog() {
  if (counts()) taken = false;
}

void StepLog::begin_at(std::int64_t steps) {
  if (gauge_) gauge_->begin_at(steps);
}

void StepLog::model(std::int64_t parameter_bytes) {
  if (!counts()) return;
  log_.write("model", {{"parameter_bytes", parameter_bytes}});
}

void StepLog::step(std::int64_t samples, double seconds, double communication_seconds) {
  if (!counts()) return;
  log_.write(
      "step",
      {{"samples", samples}, {"seconds", seconds}, {"communication", communication_seconds}});
  gauge_->step(samples, seconds, communication_seconds);
}

}  // namespace paceline
