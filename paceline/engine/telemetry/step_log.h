#pragma once

// How far and how fast a training program is, in two forms: a gauge for programs that look from
// outside while it runs (`paceline top`), and a log for `paceline advise`. The gauge: counts of
// steps, samples and seconds in a mapped file, PACELINE_FLIGHT_DIR/rank-000.steps, 72 bytes that
// never grow. docs/formats/step_gauge.md has every byte; a program of any language can keep one.
//
// Cost: five stores and a look at the clock a step, no system call. Thread safety: one writer.

#include <cstdint>
#include <optional>
#include <string>

#include "paceline/engine/telemetry/metrics_log.h"

namespace paceline {

struct StepReading {
  int pid = 0;  // of the process that counts
  std::uint64_t steps = 0;
  std::uint64_t samples = 0;         // this rank's
  double seconds = 0;                // of all steps together
  double communication_seconds = 0;  // the part of them in which the rank waited for others
  // Steps that the training had made before these, as after a restart; nothing: not known.
  std::optional<std::uint64_t> begun_at;
  // When the first of these steps began and the last one ended, in seconds on this host's monotonic
  // clock; nothing: not said.
  std::optional<double> first_began, last_ended;
};

// "rank-003.steps".
std::string step_gauge_name(int rank);

// Nothing when there is no such file, or it is something else.
std::optional<StepReading> read_step_gauge(const std::string& path);

class StepGauge {
 public:
  // Goes on counting where this process left off. Without PACELINE_FLIGHT_DIR, or when the file
  // cannot be made, nothing is counted: a gauge is optional.
  StepGauge() noexcept;
  // Removes the file, unless PACELINE_FLIGHT_KEEP=1 leaves that to the program that started the
  // job.
  ~StepGauge();
  StepGauge(const StepGauge&) = delete;
  StepGauge& operator=(const StepGauge&) = delete;

  // Before the first step: how many steps the training has made. Only the first call of a process
  // counts.
  void begin_at(std::int64_t steps) noexcept;
  void step(std::int64_t samples, double seconds, double communication_seconds) noexcept;

 private:
  struct Page;
  Page* page_ = nullptr;
  std::string path_;
};

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
// Every step is also counted in the rank's gauge (StepGauge), with or without that variable.
//
// One log of a process counts: the first, for as long as it lives. Two that count the same steps,
// such as a loop's own and DistributedDataParallel's, would double them.
//
// Cost: one short write a step, a few microseconds. Thread safety: none.
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
