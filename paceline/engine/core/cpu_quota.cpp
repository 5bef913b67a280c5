#include "paceline/engine/core/cpu_quota.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "paceline/engine/core/cgroup_membership.h"

namespace paceline {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<double> quota_of(const std::string& quota_text, const std::string& period_text) {
  const double quota = std::atof(quota_text.c_str());
  const double period = std::atof(period_text.c_str());
  if (quota <= 0 || period <= 0) return {};
  return quota / period;
}

std::optional<double> quota_of_folder(const std::string& folder, bool unified) {
  if (!unified) {
    return quota_of(first_line(folder + "/cpu.cfs_quota_us"),
                    first_line(folder + "/cpu.cfs_period_us"));
  }
  std::istringstream line(first_line(folder + "/cpu.max"));
  std::string quota, period;
  line >> quota >> period;
  return quota == "max" ? std::nullopt : quota_of(quota, period);
}

}  // namespace

std::optional<CpuQuota> cgroup_cpu_quota(const std::string& root, const std::string& membership) {
  std::optional<double> smallest;
  auto look_at = [&](const std::string& folder, bool unified) {
    const auto quota = quota_of_folder(folder, unified);
    if (quota && (!smallest || *quota < *smallest)) smallest = quota;
  };
  for (const CgroupMembership& cgroup : cgroup_memberships(membership)) {
    const bool unified = cgroup.is_unified();
    if (!unified && !cgroup.has("cpu")) continue;
    const std::string mount = unified ? root : fmt::format("{}/cpu", root);
    for (std::string_view path = cgroup.path; path.starts_with('/') && path.size() > 1;
         path = path.substr(0, path.rfind('/'))) {
      look_at(fmt::format("{}{}", mount, path), unified);
    }
    look_at(mount, unified);
  }
  return smallest ? std::optional(CpuQuota{*smallest, "the cgroup"}) : std::nullopt;
}

std::optional<CpuQuota> slurm_cpu_quota(const VariableLookup& variable) {
  // SLURM_CPUS_PER_TASK does not hold for two processes: one outside of a step, which stands in for
  // all tasks of the node, and the only task of a step, which inherits the job's value whatever it
  // was given itself.
  const char* tasks = variable("SLURM_STEP_TASKS_PER_NODE");
  const bool is_one_of_many =
      variable("SLURM_STEP_ID") != nullptr && (tasks == nullptr || std::string_view(tasks) != "1");
  for (const char* name : {"SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"}) {
    const char* text = variable(name);
    if (text == nullptr) continue;
    if (!is_one_of_many && std::string_view(name) == "SLURM_CPUS_PER_TASK") continue;
    const int cpus = std::atoi(text);
    if (cpus > 0) return CpuQuota{static_cast<double>(cpus), name};
  }
  return {};
}

}  // namespace paceline
