#pragma once

// The log of a training program's steps for `paceline advise`. Each step is also counted in a gauge
// that other programs read while the program runs.

#include <cstdint>
#include <memory>

#include "paceline/engine/telemetry/metrics_log.h"

namespace paceline {

class StepGauge;

// Logs every step of a training program for `paceline advise`, which starts the program to measure
// its speed. DistributedDataParallel and train::TrainingRun keep a log by themselves; only other
// loops need one.
//
// With PACELINE_STEP_LOG=DIR in the environment, every rank appends one JSON object per line to
// DIR/rank-000.jsonl (for RANK=0); without the variable, nothing is written. A program in any
// language can do the same.
//
//   {"event":"model","parameter_bytes":1700000}
//   {"event":"step","samples":32,"seconds":0.0118,"communication":0.0004}
//
// `samples` is the number of samples of this rank in this step, `seconds` the duration of the step
// from the request for its data to the updated parameters, and `communication` the part of it in
// which the rank waited for others and computed nothing.
//
// Every step is also counted in the rank's gauge (StepGauge), with or without that variable.
//
// Only one log of a process counts: the first one, for as long as it lives. Two logs of the same
// steps, such as the logs of a loop and of DistributedDataParallel, would count each step twice.
//
// Cost: one short write per step, a few microseconds. Thread safety: none.
class StepLog {
 public:
  // Throws Error(kSystem) when PACELINE_STEP_LOG is set and the file cannot be opened.
  StepLog();
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // False if another log of this process already counts the steps; this log then writes nothing.
  bool counts() const { return gauge_ != nullptr; }

  // Call it once, before the first step.
  void model(std::int64_t parameter_bytes);
  // Sets how many steps a resumed training has already made. Call it once, before the first step.
  void begin_at(std::int64_t steps);
  void step(std::int64_t samples, double seconds, double communication_seconds);

 private:
  MetricsLog log_;
  std::unique_ptr<StepGauge> gauge_;  // null: another log counts
};

}  // namespace paceline
