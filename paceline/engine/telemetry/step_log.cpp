#include "paceline/engine/telemetry/step_log.h"

#include <atomic>
#include <cstdlib>

#include <fmt/format.h>

namespace paceline {

namespace {

// Whether a log of this process counts: its files are the process's.
std::atomic<bool> taken{false};

MetricsLog open_log() {
  const char* folder = std::getenv("PACELINE_STEP_LOG");
  if (folder == nullptr || *folder == '\0') return {};
  const char* rank = std::getenv("RANK");
  return MetricsLog(fmt::format("{}/rank-{:03}.jsonl", folder, rank ? std::atoi(rank) : 0));
}

}  // namespace

StepLog::StepLog() {
  if (taken.load()) return;
  log_ = open_log();
  if (!taken.exchange(true)) gauge_.emplace();
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
