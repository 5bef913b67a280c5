#include "paceline/training/train/run_report.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/system/io.h"
#include "paceline/training/models/linear.h"
#include "paceline/training/train/evaluate.h"

namespace paceline::train {

namespace {

constexpr std::int64_t kSize = 768;
constexpr double kOperations = 2.0 * kSize * kSize * kSize;  // of a product
constexpr std::chrono::duration<double> kLongEnough{0.2};

}  // namespace

double measure_matrix_speed(ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  const at::Tensor a = at::full({kSize, kSize}, 0.5), b = at::full({kSize, kSize}, 0.25);
  models::apply_linear(a, b);  // loads what is used for the first time
  group.barrier();
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  auto fastest = std::chrono::duration<double>::max();
  for (auto last = begin; last - begin < kLongEnough;) {
    models::apply_linear(a, b);
    const auto now = Clock::now();
    fastest = std::min<std::chrono::duration<double>>(fastest, now - last);
    last = now;
  }
  return all_reduce_value(group, kOperations / fastest.count());
}

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

namespace {

constexpr Phase kTrainingPhases[] = {Phase::kData, Phase::kForward, Phase::kBackward,
                                     Phase::kCommunication, Phase::kOptimizer};

std::string_view label(Phase phase) {
  return phase == Phase::kCommunication ? "exposed communication" : name_of(phase);
}

}  // namespace

RunReport make_report(ProcessGroup& group, const PhaseTimes& times, double seconds,
                      std::int64_t steps, std::int64_t samples, const SampleUnit& unit) {
  std::vector<double> mine;
  for (std::size_t phase = 0; phase < kNumPhases; ++phase)
    mine.push_back(times.seconds(static_cast<Phase>(phase)));
  const auto world = static_cast<std::size_t>(group.world_size());
  std::vector<double> all(kNumPhases * world);
  group.all_gather(std::span(mine), std::span(all));

  RunReport report;
  report.seconds = seconds;
  report.steps = steps;
  report.samples = samples;
  report.unit = unit;
  report.samples_per_second = seconds > 0 ? static_cast<double>(report.samples) / seconds : 0;
  std::vector<double> computed(world);
  for (std::size_t rank = 0; rank < world; ++rank) {
    for (std::size_t i = 0; i < kNumPhases; ++i) {
      const auto phase = static_cast<Phase>(i);
      report.mean.add(phase, all[rank * kNumPhases + i] / static_cast<double>(world));
      if (phase < Phase::kEvaluation && phase != Phase::kCommunication)
        computed[rank] += all[rank * kNumPhases + i];
    }
  }
  const auto slowest = std::max_element(computed.begin(), computed.end());
  double mean = 0;
  for (const double value : computed) mean += value / static_cast<double>(world);
  report.slowest_rank = static_cast<int>(slowest - computed.begin());
  report.slowest_by = *slowest - mean;
  if (unit.operations_per_sample > 0) report.matrix_speed = measure_matrix_speed(group);
  return report;
}

std::string RunReport::table() const {
  std::string text;
  const auto row = [&](std::string_view name, const std::string& value) {
    text += table_row(std::string(name), value);
  };
  row("training time", fmt::format("{:.1f} s, {} steps", seconds, steps));
  row("throughput", fmt::format("{:.0f} {}/s", units_per_second(), unit.name));
  if (matrix_speed > 0) {
    row("share of matrix speed",
        fmt::format("{:.1f}% of {:.1f} Gflop/s (float32 products, measured)", 100 * matrix_share(),
                    matrix_speed / 1e9));
  }
  double accounted = 0;
  for (const Phase phase : kTrainingPhases) {
    accounted += mean.seconds(phase);
    row(label(phase),
        fmt::format("{:5.1f}%", seconds > 0 ? 100 * mean.seconds(phase) / seconds : 0));
  }
  row("other", fmt::format("{:5.1f}%",
                           seconds > 0 ? 100 * std::max(0.0, seconds - accounted) / seconds : 0));
  row("slowest rank", fmt::format("{} ({:.2f} s above the mean)", slowest_rank, slowest_by));
  return text;
}

}  // namespace paceline::train
