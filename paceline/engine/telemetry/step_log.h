#pragma once

// The progress and the speed of a training program, in two forms: a gauge that other programs read
// while it runs (`paceline top`), and a log for `paceline advise`. The gauge counts steps, samples
// and seconds in a mapped file, PACELINE_FLIGHT_DIR/rank-000.steps, of 72 bytes.
// telemetry/FORMAT.md describes every byte; a program in any language can keep one.
//
// Cost of a step: five stores and one reading of the clock, no system call. Thread safety: one
// writer.

#include <cstdint>
#include <optional>
#include <string>

#include "paceline/engine/telemetry/metrics_log.h"

namespace paceline {

struct StepReading {
  int pid = 0;  // the process that writes the gauge
  std::uint64_t steps = 0;
  std::uint64_t samples = 0;         // the samples of this rank
  double seconds = 0;                // of all steps together
  double communication_seconds = 0;  // the part of `seconds` in which the rank waited for others
  // The steps that the training had made before these, for example before a restart; nullopt:
  // unknown.
  std::optional<std::uint64_t> begun_at;
  // When the first of these steps began and the last one ended, in seconds on this host's monotonic
  // clock; nullopt: unknown.
  std::optional<double> first_began, last_ended;
};

// "rank-003.steps".
std::string step_gauge_name(int rank);

// Returns nullopt when there is no such file, or it is not a step gauge.
std::optional<StepReading> read_step_gauge(const std::string& path);

class StepGauge {
 public:
  // Continues the counts of an earlier gauge of this process. Without PACELINE_FLIGHT_DIR, or when
  // the file cannot be made, nothing is counted: a gauge is optional.
  StepGauge() noexcept;
  // Removes the file, unless PACELINE_FLIGHT_KEEP=1 leaves that to the program that started the
  // job.
  ~StepGauge();
  StepGauge(const StepGauge&) = delete;
  StepGauge& operator=(const StepGauge&) = delete;

  // Sets how many steps the training has made before its first step here. Only the first call in a
  // process counts.
  void begin_at(std::int64_t steps) noexcept;
  void step(std::int64_t samples, double seconds, double communication_seconds) noexcept;

 private:
  struct Page;
  Page* page_ = nullptr;
  std::string path_;
};

// Logs every step of a training program for `paceline advise`, which starts the program to measure
// its speed. DistributedDataParallel and train::run_loop() keep a log by themselves; only other
// loops need one.
//
// With PACELINE_STEP_LOG=DIR in the environment, every rank appends one JSON object per line to
// DIR/rank-000.jsonl (its RANK); without it, nothing is written. A program in any language can do
// the same.
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
// steps, such as those of a loop and of DistributedDataParallel, would count them twice.
//
// Cost: one short write per step, a few microseconds. Thread safety: none.
class StepLog {
 public:
  // Throws Error(kSystem) when PACELINE_STEP_LOG is set and the file cannot be opened.
  StepLog();
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // False while another log of this process counts; this log then drops everything.
  bool counts() const { return gauge_.has_value(); }

  // Call it once, before the first step.
  void model(std::int64_t parameter_bytes);
  // Sets how many steps a resumed training has already made. Call it once, before the first step.
  void begin_at(std::int64_t steps);
  void step(std::int64_t samples, double seconds, double communication_seconds);

 private:
  MetricsLog log_;
  std::optional<StepGauge> gauge_;
};

}  // namespace paceline
