#include "paceline/training/train/run_memory.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/error.h"
#include "paceline/planning/forecast/best_ways.h"
#include "paceline/training/tensor/tensor_view.h"
#include "paceline/training/train/evaluate.h"

namespace paceline::train {

namespace {

// The kilobytes behind each name of such a file, as bytes.
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

// The bytes of the parameters; of a copy that several ranks share, this rank's share.
double parameter_bytes(const optim::Optimizer& optimizer) {
  auto bytes = static_cast<double>(total_bytes(optimizer.parameters()));
  if (!optimizer.has_one_copy()) return bytes;
  const ProcessGroup& group = *optimizer.shard_group();
  const Hosts& hosts = group.hosts();
  if (optimizer.divides_hosts()) bytes /= static_cast<double>(hosts.size());
  return bytes / static_cast<double>(hosts.neighbours(group.rank()).size());
}

double state_bytes(const optim::Optimizer& optimizer) {
  return static_cast<double>(optimizer.num_state_bytes());
}

// The state takes memory from the first step on, or since it was loaded.
bool has_state(const optim::Optimizer& optimizer) {
  return optimizer.num_steps().second.sum().item<std::int64_t>() > 0;
}

std::string beside(double planned, double peak) {
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
    if (error.code() != ErrorCode::kInvalid) throw;  // else another one counts
  }
}

void RunMemory::count_gradients(const optim::Optimizer& optimizer) {
  if (meter_ && !gradient_bytes_)
    gradient_bytes_ = static_cast<double>(optimizer.num_gradient_bytes());
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
  group.all_gather(std::span(mine), std::span(all));
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
  return table_row("memory of a host", beside(host_planned, host_peak)) +
         table_row("memory of a rank", beside(rank.all(), rank_peak)) +
         table_row("",
                   fmt::format("parameters {}, gradients {}, optimizer {}, activations {}{}, "
                               "process {}",
                               text(rank.parameters), text(rank.gradients), text(rank.optimizer),
                               text(rank.activations), checkpoint, text(rank.process)));
}

}  // namespace paceline::train
