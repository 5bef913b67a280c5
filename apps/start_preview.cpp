#include "apps/start_preview.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "paceline/launch/placement_warnings.h"
#include "paceline/launch/shell_words.h"
#include "paceline/launch/worker_environment.h"

#include "apps/binding_option.h"

namespace paceline::apps {
namespace {

using launch::LaunchOptions;

struct ConfigLine {
  std::string flag, value, source;
};

class Config {
 public:
  Config(const CLI::App& app, const launch::LaunchPlan& plan, const RunTexts& texts,
         const CommandLine& line)
      : app_(app), plan_(plan), options_(plan.options), texts_(texts), line_(line) {}

  std::vector<ConfigLine> lines() {
    add_ranks();
    add_machines();
    add_output();
    return std::move(lines_);
  }

 private:
  void add_ranks() {
    add("--nproc-per-node", fmt::to_string(options_.num_local_ranks));
    add("--threads-per-rank", fmt::to_string(plan_.placement.ranks.front().num_threads),
        threads_source());
    if (texts_.numa_binding.empty()) {
      add("--bind", format_binding(options_.binding));
    } else {
      add("--bind", format_binding(options_.binding), source("--numa-binding"));
    }
    add("--report-bindings", options_.report_bindings ? "yes" : "no",
        texts_.report_bindings ? "" : "default (yes on a terminal)");
  }

  void add_machines() {
    add_given("--hosts", texts_.hosts);
    add_given("--hostfile", texts_.hostfile);
    add_given("--ssh-command", texts_.ssh_command);
    add_given("--remote-paceline", texts_.remote_paceline);
    add_given("--export", texts_.export_names);
    add_given("--start-timeout", texts_.start_timeout);
    const bool elastic = options_.min_nodes != options_.num_nodes;
    add("--nnodes", elastic ? fmt::format("{}:{}", options_.min_nodes, options_.num_nodes)
                            : fmt::to_string(options_.num_nodes));
    add("--node-rank", options_.node_rank ? fmt::to_string(*options_.node_rank) : "as they come");
    add("--standalone", texts_.standalone ? "yes" : "no");
    add("--master-addr", options_.master_addr);
    add("--master-port",
        options_.master_port == 0 ? "a free one" : fmt::to_string(options_.master_port));
    add("--rdzv-id", options_.run_id,
        texts_.rdzv_id.empty() && !options_.several_nodes() ? "default (random)" : "");
    if (options_.several_nodes()) add("--rdzv-endpoint", to_string(options_.meeting.endpoint));
    add("--max-restarts", fmt::to_string(options_.restarts.max_restarts));
    const std::chrono::duration<double> window = options_.restarts.window;
    add("--restart-window", fmt::format("{:g}", window.count()));
    add("--chaos", texts_.chaos.empty() ? "none" : texts_.chaos);
  }

  // Options of jobs on several hosts are shown only there.
  void add_given(const std::string& flag, const std::string& value) {
    if (!value.empty()) add(flag, value);
  }

  void add_output() {
    add("--log-dir", options_.log_dir.empty() ? "temporary" : options_.log_dir);
    add("--all-ranks", texts_.all_ranks ? "yes" : "no");
    add("--tee", texts_.tee.empty() ? "rank 0" : texts_.tee);
    add("--local-ranks-filter",
        texts_.local_ranks_filter.empty() ? "all that are shown" : texts_.local_ranks_filter);
    add("--timeline", options_.timeline.empty() ? "none" : options_.timeline);
    const std::chrono::duration<double> seconds = options_.shutdown_timeout;
    add("--shutdown-timeout", fmt::format("{:g}", seconds.count()));
    add("--hang-timeout",
        fmt::format("{:g}", std::chrono::duration<double>(options_.hang_timeout).count()));
    add("--hang-action", options_.kill_hanging ? "kill" : "report");
    add("--straggler-after",
        fmt::format("{:g}", std::chrono::duration<double>(options_.straggler_patience).count()));
  }

  std::string threads_source() const {
    if (options_.threads_per_rank) return "";
    return launch::inherited_threads(launch::inherited_environment())
               ? "variable OMP_NUM_THREADS"
               : "default (the rank's cores)";
  }

  std::string source(const std::string& flag) const {
    return origin_of(*app_.get_option(flag), line_);
  }

  void add(const std::string& flag, const std::string& value, const std::string& where = "") {
    lines_.push_back({flag, value, where.empty() ? source(flag) : where});
  }

  const CLI::App& app_;
  const launch::LaunchPlan& plan_;
  const LaunchOptions& options_;
  const RunTexts& texts_;
  const CommandLine& line_;
  std::vector<ConfigLine> lines_;
};

}  // namespace

std::string command_text(const std::vector<std::string>& command) {
  std::string text;
  for (const std::string& word : command)
    text += (text.empty() ? "" : " ") + launch::shell_quoted(word);
  return text;
}

std::string dry_run_text(const launch::LaunchPlan& plan) {
  const LaunchOptions& options = plan.options;
  std::string text =
      fmt::format("{} rank{} on machine {} of {}, world size {}\n", options.num_local_ranks,
                  options.num_local_ranks == 1 ? "" : "s", options.place().node_rank,
                  options.num_nodes, options.world_size());
  text += fmt::format("program: {}\n", plan.program_path);
  for (const std::string& reason : plan.placement.reasons) {
    text += fmt::format("because: {}\n", reason);
  }
  const auto inherited = launch::inherited_environment();
  const launch::JobAddresses known{.store = "", .master_addr = options.master_addr};
  for (int i = 0; i < options.num_local_ranks; ++i) {
    text += launch::describe_placement(options.rank_of(i), plan.placement.ranks[i],
                                       plan.placement.bound) +
            "\n";
    const auto worker =
        launch::worker_environment(inherited, options, options.place(), i, plan.placement, known);
    for (const auto& [name, value] : launch::added_variables(worker, inherited)) {
      const bool at_start =
          name == "PACELINE_STORE" || name == "PACELINE_SECRET_FD" || name == "MASTER_PORT";
      text += fmt::format("  {}={}\n", name,
                          at_start ? "(known at the start)" : launch::shell_quoted(value));
    }
    text += fmt::format("  {}\n", command_text(options.command));
  }
  return text;
}

std::string config_text(const CLI::App& app, const launch::LaunchPlan& plan, const RunTexts& texts,
                        const CommandLine& line) {
  const auto lines = Config(app, plan, texts, line).lines();
  std::size_t widest = 0;
  for (const ConfigLine& one : lines) widest = std::max(widest, one.value.size());
  std::string text;
  for (const ConfigLine& one : lines) {
    text += fmt::format("{:<22}{:<{}}  {}\n", one.flag, one.value, widest, one.source);
  }
  std::vector<std::string> program = plan.options.command;
  program.front() = plan.program_path;
  return text + fmt::format("{:<22}{}\n", "program", command_text(program));
}

}  // namespace paceline::apps
