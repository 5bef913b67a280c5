#pragma once

// The progress of a training program as a gauge that other programs read while it runs (`paceline
// top`): the counts of its steps, samples and seconds in a mapped file of 72 bytes,
// PACELINE_FLIGHT_DIR/rank-000.steps. telemetry/FORMAT.md describes every byte, so that a program
// in any language can keep such a gauge.
//
// Cost of a step: five stores and one reading of the clock, no system call. Thread safety: one
// writer.

#include <cstdint>
#include <optional>
#include <string>

namespace paceline {

struct StepReading {
  int pid = 0;  // the process that writes the gauge
  std::uint64_t steps = 0;
  std::uint64_t samples = 0;         // the samples of this rank
  double seconds = 0;                // of all steps together
  double communication_seconds = 0;  // the part of `seconds` in which the rank waited for others
  // The number of steps that the training had made before the first counted step, for example
  // before a restart; nullopt: unknown.
  std::optional<std::uint64_t> begun_at;
  // When the first counted step began and the last one ended, in seconds on this host's monotonic
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

  // Sets how many steps the training has made before its first step in this process. Only the first
  // call in a process has an effect.
  void begin_at(std::int64_t steps) noexcept;
  void step(std::int64_t samples, double seconds, double communication_seconds) noexcept;

 private:
  struct Page;
  Page* page_ = nullptr;
  std::string path_;
};

}  // namespace paceline
