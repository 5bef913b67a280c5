#include "paceline/training/train/run_report.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "paceline/training/train/matrix_speed.h"
#include "paceline/training/train/test_result.h"

namespace paceline::train {
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
