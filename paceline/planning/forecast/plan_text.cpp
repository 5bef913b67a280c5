#include "paceline/planning/forecast/plan_text.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

namespace paceline::planning {
namespace {

std::string step_text(double seconds) {
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string schedule_text(const Way& way) {
  if (way.stages == 1) return "-";
  return fmt::format("{} x{}", way.schedule, way.micro_batches);
}

std::string sharding_text(const Way& way) {
  return way.shard_stage == 0 ? "DDP" : fmt::format("stage {}", way.shard_stage);
}

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

std::string error_text(double predicted, double measured) {
  return fmt::format("{:+.1f}%", percent(predicted - measured, measured));
}

std::string summary_of(const char* what, std::vector<double> errors) {
  if (errors.empty()) return "";
  std::sort(errors.begin(), errors.end());
  const std::size_t count = errors.size();
  const double median = (errors[(count - 1) / 2] + errors[count / 2]) / 2;
  return fmt::format("{}: error {:.1f}% in the median, {:.1f}% at worst\n", what, median,
                     errors.back());
}

}  // namespace

std::string memory_text(double bytes) {
  if (bytes < 1e9) return fmt::format("{:.0f} MB", bytes / 1e6);
  return fmt::format("{:.4g} GB", bytes / 1e9);
}

std::string way_table(const Search& search, const JobProfile& profile, std::size_t rows) {
  std::string text =
      fmt::format("{:<22}{:<9}{:<17}{:>10}{:>9}{:>8}{:>10}{:>11}{:>12}{:>10}{:>10}\n", "mesh",
                  "sharding", "schedule", "step", "passes", "bubble", "exchange", "optimizer",
                  profile.unit + "/s", "a rank", "a host");
  for (std::size_t i = 0; i < std::min(rows, search.ways.size()); ++i) {
    const Forecast& way = search.ways[i];
    const StepTimes& times = way.times;
    const double step = way.step_s();
    text += fmt::format(
        "{:<22}{:<9}{:<17}{:>10}{:>8.0f}%{:>7.0f}%{:>9.0f}%{:>10.0f}%{:>12.4g}{:>10}{:>10}{}\n",
        mesh_text(way.way), sharding_text(way.way), schedule_text(way.way), step_text(step),
        percent(times.compute + times.stragglers, step), percent(times.bubble, step),
        percent(times.exchange + times.gradients, step), percent(times.optimizer, step),
        way.samples_per_second() * profile.units_per_sample, memory_text(way.memory.rank.all()),
        memory_text(way.memory.host),
        !way.fits ? "  does not fit"
        : i == 0  ? "  <- best"
                  : "");
  }
  return text;
}

std::string memory_table(std::span<const Forecast> ways, const Machine& machine) {
  std::string text = fmt::format("{:<9}{:>12}{:>11}{:>11}{:>13}{:>9}{:>10}{:>10}{:>12}{:>10}\n",
                                 "sharding", "parameters", "gradients", "optimizer", "activations",
                                 "working", "process", "a rank", "once a host", "a host");
  for (const Forecast& way : ways) {
    const RankMemory& rank = way.memory.rank;
    text += fmt::format(
        "{:<9}{:>12}{:>11}{:>11}{:>13}{:>9}{:>10}{:>10}{:>12}{:>10}{}\n", sharding_text(way.way),
        memory_text(rank.parameters), memory_text(rank.gradients), memory_text(rank.optimizer),
        memory_text(rank.activations), memory_text(rank.working), memory_text(rank.process),
        memory_text(rank.all()), memory_text(way.memory.host_copy), memory_text(way.memory.host),
        machine.memory_bytes <= 0 ? ""
        : way.fits                ? "  fits"
                                  : "  does not fit");
  }
  if (machine.memory_bytes > 0)
    text += fmt::format("a host has {}\n", memory_text(machine.memory_bytes));
  return text;
}

std::string measured_table(std::span<const MeasuredWay> ways) {
  std::string text =
      fmt::format("{:<22}{:<9}{:<17}{:>11}{:>11}{:>9}{:>11}{:>11}{:>9}\n", "mesh", "sharding",
                  "schedule", "predicted", "measured", "error", "predicted", "measured", "error");
  std::vector<double> errors_of_time, errors_of_memory;
  for (const MeasuredWay& one : ways) {
    const Way& way = one.forecast.way;
    text += fmt::format("{:<22}{:<9}{:<17}{:>11}", mesh_text(way), sharding_text(way),
                        schedule_text(way), step_text(one.forecast.step_s()));
    if (one.step_s <= 0) {
      text += fmt::format("  {}\n", one.problem);
      continue;
    }
    const double memory = one.forecast.memory.host;
    text += fmt::format("{:>11}{:>9}{:>11}{:>11}{:>9}\n", step_text(one.step_s),
                        error_text(one.forecast.step_s(), one.step_s), memory_text(memory),
                        memory_text(one.host_bytes), error_text(memory, one.host_bytes));
    errors_of_time.push_back(std::abs(percent(one.forecast.step_s() - one.step_s, one.step_s)));
    errors_of_memory.push_back(std::abs(percent(memory - one.host_bytes, one.host_bytes)));
  }
  return text + summary_of("step", errors_of_time) + summary_of("memory", errors_of_memory);
}

}  // namespace paceline::planning
