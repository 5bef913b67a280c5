#include "apps/run/start_preview.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/rendezvous/fork_server.h"
#include "paceline/launcher/placement/placement_warnings.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/ranks/job_services.h"

#include "apps/cli/flag_file.h"
#include "apps/cli/own_program.h"
#include "apps/run/hosts_options.h"

namespace paceline::apps {

namespace {

using launcher::LaunchOptions;

struct ConfigLine {
  std::string value, origin;
};

constexpr std::array<std::string_view, 2> kNotShown = {"--dry-run", "--print-config"};

// The lines of --print-config.
class Config {
 public:
  explicit Config(const OptionTable& table) : table_(table) {
    for (const Option& option : table.options()) {
      const std::string value = option.value();
      lines_[option.name] = {value.empty() ? option.target.unset : value, option.origin};
    }
  }

  // Adds values that only the plan contains, and their origins.
  void add_plan(const launcher::LaunchPlan& plan) {
    const LaunchOptions& options = plan.options;
    ConfigLine& threads = lines_["--threads-per-rank"];
    threads.value = fmt::to_string(plan.placement.ranks.front().num_threads);
    if (!options.threads_per_rank) {
      threads.origin = launcher::inherited_threads(launcher::inherited_environment())
                           ? "variable OMP_NUM_THREADS"
                           : "default (the rank's cores)";
    }
    if (table_["--numa-binding"].given()) {
      lines_["--bind"].origin = table_["--numa-binding"].origin;
    }
    if (!table_["--report-bindings"].given()) {
      lines_["--report-bindings"].origin = "default (yes on a terminal)";
    }
    if (!table_["--rdzv-id"].given() && !options.run_id_is_shared()) {
      lines_["--rdzv-id"].origin = "default (random)";
    }
    if (table_["--roles"].given() && !table_["--nproc-per-node"].given()) {
      lines_["--nproc-per-node"].origin = table_["--roles"].origin;
    }
    const std::string file = usual_flag_file();
    if (!table_["--config"].given() && !file.empty()) lines_["--config"].value = file;
  }

  // Adds values that follow from the list of hosts.
  void add_hosts(const std::vector<launcher::Host>& hosts) {
    const std::string named = table_["--hosts"].given()      ? table_["--hosts"].origin
                              : table_["--hostfile"].given() ? table_["--hostfile"].origin
                                                             : "SLURM's allocation";
    std::vector<int> slots;
    for (const launcher::Host& host : hosts) slots.push_back(host.slots);
    const bool alike =
        std::all_of(slots.begin(), slots.end(), [&](int count) { return count == slots.front(); });
    lines_["--nproc-per-node"].value =
        alike ? fmt::to_string(slots.front()) : fmt::format("{}", fmt::join(slots, ","));
    lines_["--node-rank"].value = fmt::format("0 to {}", hosts.size() - 1);
    lines_["--master-addr"].value = meeting_address(table_, hosts);
    for (const char* found : {"--nproc-per-node", "--nnodes", "--node-rank", "--master-addr"}) {
      if (!table_[found].given()) lines_[found].origin = named;
    }
    if (!table_["--master-port"].given()) {
      lines_["--master-port"].value = table_["--master-port"].target.unset;
    }
    lines_["--rdzv-endpoint"] = {"not needed", named};
    if (!table_["--remote-paceline"].given()) lines_["--remote-paceline"].value = own_program();
  }

  // The text, with the options in the order of the help.
  std::string text() const {
    std::size_t widest = 0;
    for (const auto& [name, line] : lines_) widest = std::max(widest, line.value.size());
    std::string text;
    for (const Option& option : table_.options()) {
      if (std::find(kNotShown.begin(), kNotShown.end(), option.name) != kNotShown.end()) continue;
      const ConfigLine& line = lines_.at(option.name);
      text += fmt::format("{:<22}{:<{}}  {}\n", option.name, line.value, widest, line.origin);
    }
    return text;
  }

 private:
  const OptionTable& table_;
  std::map<std::string, ConfigLine> lines_;
};

constexpr const char* kAtStart = "(known at the start)";

// The variables of a rank whose values exist only when the job starts: those for its ports, its
// secret and its services (JobServices).
std::vector<std::string> known_at_start(const LaunchOptions& options,
                                        const launcher::Environment& inherited) {
  std::vector<std::string> names = {"PACELINE_STORE", "PACELINE_SECRET_FD", "MASTER_PORT",
                                    "PACELINE_FLIGHT_KEEP", "PACELINE_JOB_SOCKET"};
  if (!inherited.contains("PACELINE_FLIGHT_DIR")) names.push_back("PACELINE_FLIGHT_DIR");
  if (!inherited.contains("PACELINE_MEMORY_CHECKPOINT")) {
    names.push_back("PACELINE_MEMORY_CHECKPOINT");
  }
  if (!options.timeline.empty()) names.push_back("PACELINE_TIMELINE_DIR");
  if (options.may_restart() && options.fork_server) names.push_back(kForkServerVariable);
  if (options.several_nodes() && !options.part)
    names.emplace_back("MASTER_ADDR");  // the address of rank 0
  return names;
}

constexpr const char* kByTheHost = "(from the host's cores)";

// Lists the variables that a rank gets in addition to `inherited`. `placement`: null if another
// host decides it.
std::string variables_text(const LaunchOptions& options, const launcher::Environment& inherited,
                           int local_rank, const launcher::Placement* placement,
                           const std::string& indent) {
  launcher::Placement unknown;
  unknown.ranks.resize(static_cast<std::size_t>(options.num_local_ranks));
  for (launcher::RankPlacement& rank : unknown.ranks) {
    rank.num_threads = options.threads_per_rank.value_or(1);
  }
  const launcher::JobAddresses known{.store = "", .master_addr = options.master_addr};
  auto worker = launcher::worker_environment(inherited, options, options.place(), local_rank,
                                             placement != nullptr ? *placement : unknown, known);
  launcher::set_terminal(worker, options, options.place(), local_rank);
  for (const std::string& name : known_at_start(options, inherited)) worker[name] = kAtStart;
  if (placement == nullptr && !options.threads_per_rank &&
      !launcher::inherited_threads(inherited)) {
    worker["OMP_NUM_THREADS"] = worker["PACELINE_THREAD_SHARE"] = kByTheHost;
    if (!inherited.contains("OPENBLAS_NUM_THREADS")) worker["OPENBLAS_NUM_THREADS"] = kByTheHost;
  }
  std::string text;
  for (const auto& [name, value] : launcher::added_variables(worker, inherited)) {
    const bool is_known = value != kAtStart && value != kByTheHost;
    text += fmt::format("{}{}={}\n", indent, name, is_known ? shell_quoted(value) : value);
  }
  return text;
}

}  // namespace

std::string dry_run_text(const launcher::LaunchPlan& plan) {
  const LaunchOptions& options = plan.options;
  std::string text = fmt::format(
      "{} on machine {} of {}, world size {}\n", counted(options.num_local_ranks, "rank"),
      options.place().node_rank, options.num_nodes, options.world_size());
  text += fmt::format("program: {}\n", plan.program_path);
  for (const std::string& reason : plan.placement.reasons) {
    text += fmt::format("because: {}\n", reason);
  }
  const auto inherited = launcher::inherited_environment();
  for (int i = 0; i < options.num_local_ranks; ++i) {
    text += launcher::describe_placement(options.rank_of(i), plan.placement.ranks[i],
                                         plan.placement.bound) +
            "\n";
    text += variables_text(options, inherited, i, &plan.placement, "  ");
    text += fmt::format("  {}\n", shell_line(options.command));
  }
  return text;
}

std::string hosts_preview(const launcher::HostsPlan& plan, const LaunchOptions& options) {
  const auto& ranks = plan.parts.front().job.part.ranks_per_host;
  std::string text =
      fmt::format("{}, world size {}\n", counted(plan.parts.size(), "host"), plan.job.world_size);
  const launcher::Environment& sent = plan.parts.front().job.environment;
  for (const auto& [name, value] : sent) {
    text += fmt::format("  {}={}\n", name, shell_quoted(value));
  }
  for (std::size_t host = 0; host < plan.parts.size(); ++host) {
    const launcher::HostsPlan::Part& part = plan.parts[host];
    text += fmt::format("host {}: {}\n", part.route.name, shell_line(part.route.command));
    text += fmt::format("  cd {}\n  paceline run {}\n", shell_quoted(part.job.directory),
                        shell_line(part.job.arguments));
    LaunchOptions there = options;
    there.node_rank = static_cast<int>(host);
    there.num_local_ranks = ranks[host];
    there.terminal = false;
    there.part = launcher::HostPart{.ranks_per_host = ranks};
    for (int local = 0; local < ranks[host]; ++local) {
      text += fmt::format("  rank {}: cores as the host has them\n", there.rank_of(local));
      text += variables_text(there, sent, local, nullptr, "    ");
      text += fmt::format("    {}\n", shell_line(options.command));
    }
    text += fmt::format(
        "  cores and threads: on the host, paceline run --nproc-per-node {} --dry-run shows them\n",
        ranks[host]);
  }
  return text;
}

std::string config_text(const OptionTable& table, const launcher::LaunchPlan& plan,
                        const std::vector<launcher::Host>* hosts) {
  Config config(table);
  config.add_plan(plan);
  if (hosts != nullptr) config.add_hosts(*hosts);
  std::vector<std::string> program = plan.options.command;
  program.front() = plan.program_path;
  return config.text() + fmt::format("{:<22}{}\n", "program", shell_line(program));
}

}  // namespace paceline::apps
