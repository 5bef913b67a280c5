#include "paceline/training/train/progress.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/core/terminal.h"

namespace paceline::train {
namespace {

using namespace std::chrono_literals;

constexpr auto kTerminalInterval = 200ms;
constexpr auto kPlainInterval = 5s;

// Under paceline run stdout is a terminal of the launcher's making; the launcher says whether the
// rank may draw on it.
bool draws() {
  const char* told = std::getenv("PACELINE_TERMINAL");
  return told != nullptr ? std::strcmp(told, "1") == 0 : can_draw_on(STDOUT_FILENO);
}

}  // namespace

std::string clock_text(std::int64_t seconds) {
  const auto hours = seconds / 3600, minutes = seconds / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, seconds % 60);
  return fmt::format("{}:{:02}", minutes, seconds % 60);
}

Progress::Progress(std::int64_t total_steps, int replicas, bool silent, const SampleUnit& unit)
    : total_steps_(total_steps),
      replicas_(replicas),
      silent_(silent),
      unit_(unit),
      terminal_(draws()),
      last_written_(std::chrono::steady_clock::now()) {}

void Progress::after_step(const StepReport& report) {
  samples_since_ += report.samples * replicas_;
  if (first_step_ < 0) {  // the first one prepares memory and is slow
    first_step_ = report.state.step;
    first_step_end_ = std::chrono::steady_clock::now();
  }
  if (silent_) return;
  const auto interval = terminal_ ? std::chrono::milliseconds(kTerminalInterval)
                                  : std::chrono::milliseconds(kPlainInterval);
  if (std::chrono::steady_clock::now() - last_written_ >= interval) write(report);
}

// ", 1:02:03 left"; nothing after the first step, and at the end.
std::string Progress::time_left(std::int64_t step) const {
  const std::int64_t taken = step - first_step_, left = total_steps_ - step;
  if (taken <= 0 || left <= 0) return {};
  const std::chrono::duration<double> so_far = std::chrono::steady_clock::now() - first_step_end_;
  const auto seconds = static_cast<std::int64_t>(so_far.count() / static_cast<double>(taken) *
                                                 static_cast<double>(left));
  return fmt::format(", {} left", clock_text(seconds));
}

void Progress::write(const StepReport& report) {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - last_written_).count();
  const double rate = static_cast<double>(samples_since_ * unit_.per_sample) / seconds;
  const std::string line = fmt::format("epoch {}  step {}/{}  loss {:.4f}  {:.0f} {}/s{}",
                                       report.state.epoch + 1, report.state.step, total_steps_,
                                       report.loss, rate, unit_.name, time_left(report.state.step));
  // On a terminal the line is written over itself; "\033[K" clears what a longer one left.
  fmt::print("{}{}{}", terminal_ ? "\r" : "", line, terminal_ ? "\033[K" : "\n");
  std::fflush(stdout);
  in_line_ = terminal_;
  last_written_ = now;
  samples_since_ = 0;
}

void Progress::note(const std::string& line) {
  if (silent_) return;
  fmt::print("{}{}\n", in_line_ ? "\n" : "", line);
  std::fflush(stdout);
  in_line_ = false;
}

}  // namespace paceline::train
