#include "paceline/training/train/run_report.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/telemetry/timeline.h"
#include "paceline/planning/forecast/best_ways.h"
#include "paceline/training/models/layer_functions.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/tensor/tensor_view.h"
#include "paceline/training/train/evaluate.h"

namespace paceline::train {
namespace {

// Returns the sizes after each name in a file such as /proc/self/status, converted from kilobytes
// to bytes.
std::map<std::string, double> sizes_in(const char* path) {
  std::map<std::string, double> sizes;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || !line.ends_with(" kB")) continue;
    sizes[line.substr(0, colon)] = std::stod(line.substr(colon + 1)) * 1024;
  }
  return sizes;
}

}  // namespace

std::optional<OwnMemory> own_memory() {
  const auto rollup = sizes_in("/proc/self/smaps_rollup"), status = sizes_in("/proc/self/status");
  for (const char* name : {"Pss_Anon", "Pss_Shmem"}) {
    if (!rollup.contains(name)) return std::nullopt;
  }
  for (const char* name : {"RssFile", "VmRSS", "VmHWM"}) {
    if (!status.contains(name)) return std::nullopt;
  }
  return OwnMemory{.anonymous = rollup.at("Pss_Anon"),
                   .shared = rollup.at("Pss_Shmem"),
                   .files = status.at("RssFile"),
                   .resident = status.at("VmRSS"),
                   .peak_resident = std::max(status.at("VmHWM"), status.at("VmRSS"))};
}

namespace {

// Returns the bytes of the parameters; if several ranks share a copy, this rank's share of it.
double parameter_bytes(const optim::Optimizer& optimizer) {
  auto bytes = static_cast<double>(total_bytes(optimizer.parameters()));
  if (!core_of(optimizer).shares_parameters()) return bytes;
  const ProcessGroup& group = *core_of(optimizer).shard_group();
  const Hosts& hosts = group.hosts();
  if (core_of(optimizer).divides_parameters()) bytes /= static_cast<double>(hosts.size());
  return bytes / static_cast<double>(hosts.neighbours(group.rank()).size());
}

double state_bytes(const optim::Optimizer& optimizer) {
  return static_cast<double>(optimizer.num_state_bytes());
}

// Whether the state takes memory, which is the case once a step was taken or a state was loaded.
bool has_state(const optim::Optimizer& optimizer) {
  return core_of(optimizer).num_steps().second.sum().item<std::int64_t>() > 0;
}

std::string planned_and_peak(double planned, double peak) {
  return fmt::format("{} planned, {} at the peak ({:+.1f}%)", planning::memory_text(planned),
                     planning::memory_text(peak), 100 * (peak - planned) / planned);
}

}  // namespace

void RunMemory::begin(const optim::Optimizer& optimizer) {
  const auto before = own_memory();
  if (!before) return;
  process_before_ = before->own() - parameter_bytes(optimizer) -
                    (has_state(optimizer) ? state_bytes(optimizer) : 0);
  resident_peak_before_ = before->peak_resident;
  try {
    meter_.emplace();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalid) throw;  // kInvalid: another meter is already counting
  }
}

void RunMemory::count_gradients(const optim::Optimizer& optimizer) {
  if (meter_ && !gradient_bytes_)
    gradient_bytes_ = static_cast<double>(core_of(optimizer).num_gradient_bytes());
}

void RunMemory::plan(const optim::Optimizer& optimizer, double checkpoint_bytes) {
  if (!meter_) return;
  const auto peak = static_cast<double>(meter_->peak());
  meter_.reset();
  const auto after = own_memory();
  if (!after) return;
  planning::RankMemory plan;
  plan.parameters = parameter_bytes(optimizer);
  plan.optimizer = state_bytes(optimizer);
  plan.gradients = gradient_bytes_.value_or(0);
  plan.activations = std::max(0.0, peak - plan.gradients);
  plan.process = std::max({0.0, process_before_, after->own() - plan.all()});
  plan.working = checkpoint_bytes;
  plan_ = plan;
  library_bytes_ = after->files;
}

std::optional<MemoryReport> RunMemory::report(ProcessGroup& group) const {
  constexpr std::size_t kNumbers = 7;
  std::vector<double> mine(kNumbers);
  const Hosts& hosts = group.hosts();
  const auto now = own_memory();
  if (plan_ && now) {
    const auto ranks = static_cast<double>(hosts.neighbours(group.rank()).size());
    const bool grew = now->peak_resident > resident_peak_before_;
    mine = {plan_->parameters,
            plan_->gradients,
            plan_->optimizer,
            plan_->activations,
            plan_->working,
            plan_->process + library_bytes_ / ranks,
            now->own() + now->files / ranks + (grew ? now->peak_resident - now->resident : 0)};
  }
  std::vector<double> all(kNumbers * static_cast<std::size_t>(group.world_size()));
  group.all_gather(std::span(all), std::span(mine));
  MemoryReport report;
  for (const std::vector<int>& ranks : hosts.members) {
    double planned = 0, peak = 0;
    for (const int rank : ranks) {
      const double* const of = all.data() + kNumbers * static_cast<std::size_t>(rank);
      const planning::RankMemory plan{of[0], of[1], of[2], of[3], of[4], of[5]};
      if (plan.all() <= 0) return std::nullopt;
      planned += plan.all();
      peak += of[6];
      if (plan.all() <= report.rank.all()) continue;
      report.rank = plan;
      report.rank_peak = of[6];
    }
    if (planned <= report.host_planned) continue;
    report.host_planned = planned;
    report.host_peak = peak;
  }
  return report;
}

std::string MemoryReport::table() const {
  const auto text = planning::memory_text;
  const std::string checkpoint =
      rank.working > 0 ? fmt::format(", a checkpoint {}", text(rank.working)) : "";
  return table_row("memory of a host", planned_and_peak(host_planned, host_peak)) +
         table_row("memory of a rank", planned_and_peak(rank.all(), rank_peak)) +
         table_row("",
                   fmt::format("parameters {}, gradients {}, optimizer {}, activations {}{}, "
                               "process {}",
                               text(rank.parameters), text(rank.gradients), text(rank.optimizer),
                               text(rank.activations), checkpoint, text(rank.process)));
}

namespace {

constexpr std::int64_t kSize = 768;
constexpr double kOperations = 2.0 * kSize * kSize * kSize;  // in one product
constexpr std::chrono::duration<double> kLongEnough{0.2};

}  // namespace

double measure_matrix_speed(GroupRef group) {
  const at::NoGradGuard no_grad;
  const at::Tensor a = at::full({kSize, kSize}, 0.5), b = at::full({kSize, kSize}, 0.25);
  models::apply_linear(a, b);  // to warm up: loads code and memory
  group->barrier();
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

// Under `paceline run` stdout may be a terminal that the launcher created; PACELINE_TERMINAL then
// tells the rank whether lines may be redrawn.
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

ProgressBar::ProgressBar(std::int64_t total_steps, int replicas, bool silent,
                         const SampleUnit& unit)
    : total_steps_(total_steps),
      replicas_(replicas),
      silent_(silent),
      unit_(unit),
      terminal_(draws()),
      last_written_(std::chrono::steady_clock::now()) {}

void ProgressBar::after_step(const StepReport& report) {
  samples_since_ += report.samples * replicas_;
  if (first_step_ < 0) {  // the first step allocates memory and is slow
    first_step_ = report.state.step;
    first_step_end_ = std::chrono::steady_clock::now();
  }
  if (silent_) return;
  const auto interval = terminal_ ? std::chrono::milliseconds(kTerminalInterval)
                                  : std::chrono::milliseconds(kPlainInterval);
  if (std::chrono::steady_clock::now() - last_written_ >= interval) write(report);
}

// Returns ", 1:02:03 left"; empty after the first step and at the end.
std::string ProgressBar::time_left(std::int64_t step) const {
  const std::int64_t taken = step - first_step_, left = total_steps_ - step;
  if (taken <= 0 || left <= 0) return {};
  const std::chrono::duration<double> so_far = std::chrono::steady_clock::now() - first_step_end_;
  const auto seconds = static_cast<std::int64_t>(so_far.count() / static_cast<double>(taken) *
                                                 static_cast<double>(left));
  return fmt::format(", {} left", clock_text(seconds));
}

void ProgressBar::write(const StepReport& report) {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - last_written_).count();
  const double rate = static_cast<double>(samples_since_ * unit_.per_sample) / seconds;
  const std::string line = fmt::format("epoch {}  step {}/{}  loss {:.4f}  {:.0f} {}/s{}",
                                       report.state.epoch + 1, report.state.step, total_steps_,
                                       report.loss, rate, unit_.name, time_left(report.state.step));
  // On a terminal the line is overwritten; "\033[K" clears the rest of a longer previous line.
  fmt::print("{}{}{}", terminal_ ? "\r" : "", line, terminal_ ? "\033[K" : "\n");
  std::fflush(stdout);
  in_line_ = terminal_;
  last_written_ = now;
  samples_since_ = 0;
}

void ProgressBar::note(const std::string& line) {
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

RunReport make_report(GroupRef group, const PhaseTimes& times, double seconds, std::int64_t steps,
                      std::int64_t samples, const SampleUnit& unit) {
  std::vector<double> mine;
  for (std::size_t phase = 0; phase < kNumPhases; ++phase)
    mine.push_back(times.seconds(static_cast<Phase>(phase)));
  const auto world = static_cast<std::size_t>(group->world_size());
  std::vector<double> all(kNumPhases * world);
  group->all_gather(std::span(all), std::span(mine));

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
