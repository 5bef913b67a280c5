#pragma once

// How fast a training program steps, for the program that started it to measure that: `paceline
// advise`. DistributedDataParallel and train::run_loop() keep one by themselves; it is for other
// loops.
//
// With PACELINE_STEP_LOG=DIR in the environment, every rank appends one JSON object a line to
// DIR/rank-000.jsonl (its RANK); without it, nothing is written. A program of any language can do
// the same.
//
//   {"event":"model","parameter_bytes":1700000}
//   {"event":"step","samples":32,"seconds":0.0118,"communication":0.0004}
//
// `samples` are this rank's in this step, `seconds` is what the step took, from asking for its data
// to the updated parameters, and `communication` the part of it in which the rank waited for others
// and computed nothing.
//
// Every step is also counted in the rank's gauge (step_gauge.h), with or without that variable.
//
// One log of a process counts: the first, for as long as it lives. Two that count the same steps,
// such as a loop's own and DistributedDataParallel's, would double them.
//
// Cost: one short write a step, a few microseconds. Thread safety: none.

#include <cstdint>
#include <optional>

#include "paceline/engine/telemetry/metrics_log.h"
#include "paceline/engine/telemetry/step_gauge.h"

namespace paceline {

class StepLog {
 public:
  // Error(kSystem) when PACELINE_STEP_LOG is set and the file cannot be opened.
  StepLog();
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // False while another one of this process does; what this one is told is then dropped.
  bool counts() const { return gauge_.has_value(); }

  // Once, before the first step.
  void model(std::int64_t parameter_bytes);
  // Once, before the first step: how many steps the training has behind it (a resumed one).
  void begin_at(std::int64_t steps);
  void step(std::int64_t samples, double seconds, double communication_seconds);

 private:
  MetricsLog log_;
  std::optional<StepGauge> gauge_;
};

}  // namespace paceline
