#pragma once

// How far a training program is, for programs that look from outside while it runs (`paceline
// top`): counts of steps, samples and seconds in a mapped file, PACELINE_FLIGHT_DIR/rank-000.steps,
// 72 bytes that never grow. docs/formats/step_gauge.md has every byte; a program of any language
// can keep one.
//
// Cost: five stores and a look at the clock a step, no system call. Thread safety: one writer.

#include <cstdint>
#include <optional>
#include <string>

namespace paceline {

struct StepReading {
  int pid = 0;  // of the process that counts
  std::uint64_t steps = 0;
  std::uint64_t samples = 0;         // this rank's
  double seconds = 0;                // of all steps together
  double communication_seconds = 0;  // the part of them in which the rank waited for others
  // Steps that the training had behind it before these, as after a restart; nothing: not said.
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
  // Counts on where this process left off. Without PACELINE_FLIGHT_DIR, or when the file cannot be
  // made, nothing is counted: a gauge is optional.
  StepGauge() noexcept;
  // Removes the file, unless PACELINE_FLIGHT_KEEP=1 leaves that to the program that started the
  // job.
  ~StepGauge();
  StepGauge(const StepGauge&) = delete;
  StepGauge& operator=(const StepGauge&) = delete;

  // Before the first step: how many the training has behind it. Counts once a process.
  void begin_at(std::int64_t steps) noexcept;
  void step(std::int64_t samples, double seconds, double communication_seconds) noexcept;

 private:
  struct Page;
  Page* page_ = nullptr;
  std::string path_;
};

}  // namespace paceline
