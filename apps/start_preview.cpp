#include "apps/start_preview.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "paceline/job/worker_environment.h"
#include "paceline/placement/placement_warnings.h"
#include "paceline/process/environment.h"
#include "paceline/process/shell_words.h"
#include "paceline/rendezvous/fork_server.h"

#include "apps/binding_option.h"
#include "apps/flag_file.h"
#include "apps/hosts_options.h"
#include "apps/own_program.h"

namespace paceline::apps {
namespace {

using launch::LaunchOptions;

struct ConfigLine {
  std::string flag, value, source;
};

constexpr std::array<std::string_view, 3> kNotShown = {"--help", "--dry-run", "--print-config"};

// What was given, or else the help's default.
std::string as_given(const CLI::Option& option) {
  const bool is_flag = option.get_items_expected_max() == 0;
  if (is_flag) return option.count() > 0 && option.as<bool>() ? "yes" : "no";
  const std::string text = option.count() > 0 ? option.as<std::string>() : option.get_default_str();
  return text.empty() ? "none" : text;
}

class Config {
 public:
  Config(const CLI::App& app, const launch::LaunchPlan& plan, const RunTexts& texts,
         const CommandLine& line, const std::vector<launch::Host>* hosts)
      : app_(app), plan_(plan), options_(plan.options), texts_(texts), line_(line), hosts_(hosts) {}

  // Every option has its line, in the help's order.
  std::vector<ConfigLine> lines() {
    add_ranks();
    add_machines();
    add_output();
    if (hosts_ != nullptr) add_hosts();
    std::vector<ConfigLine> lines;
    for (const CLI::Option* option : app_.get_options()) {
      const std::string flag = "--" + option->get_lnames().front();
      if (std::find(kNotShown.begin(), kNotShown.end(), flag) != kNotShown.end()) continue;
      const auto known = known_.find(flag);
      lines.push_back(known != known_.end() ? known->second
                                            : ConfigLine{flag, as_given(*option), source(flag)});
    }
    return lines;
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
    const bool elastic = options_.min_nodes != options_.num_nodes;
    add("--nnodes", elastic ? fmt::format("{}:{}", options_.min_nodes, options_.num_nodes)
                            : fmt::to_string(options_.num_nodes));
    add("--node-rank", options_.node_rank ? fmt::to_string(*options_.node_rank) : "as they come");
    add("--master-addr", options_.master_addr);
    add("--master-port",
        options_.master_port == 0 ? "a free one" : fmt::to_string(options_.master_port));
    add("--rdzv-id", options_.run_id,
        texts_.rdzv_id.empty() && !options_.run_id_is_shared() ? "default (random)" : "");
    if (options_.several_nodes()) add("--rdzv-endpoint", to_string(options_.meeting.endpoint));
    add("--max-restarts", fmt::to_string(options_.restarts.max_restarts));
    const std::chrono::duration<double> window = options_.restarts.window;
    add("--restart-window", fmt::format("{:g}", window.count()));
    add("--fork-server", options_.fork_server ? "on" : "off");
  }

  // What the hosts decide.
  void add_hosts() {
    const std::string named = !texts_.hosts.empty()      ? source("--hosts")
                              : !texts_.hostfile.empty() ? source("--hostfile")
                                                         : "SLURM's allocation";
    const auto add_found = [&](const char* flag, const std::string& text, const std::string& value,
                               const std::string& where) {
      add(flag, value, text.empty() ? where : "");
    };
    std::vector<int> slots;
    for (const launch::Host& host : *hosts_) slots.push_back(host.slots);
    const bool alike =
        std::all_of(slots.begin(), slots.end(), [&](int count) { return count == slots.front(); });
    add_found("--nproc-per-node", texts_.nproc_per_node,
              alike ? fmt::to_string(slots.front()) : fmt::format("{}", fmt::join(slots, ",")),
              named);
    add_found("--nnodes", texts_.nnodes, known_.at("--nnodes").value, named);
    add_found("--node-rank", texts_.node_rank, fmt::format("0 to {}", hosts_->size() - 1), named);
    add_found("--master-addr", texts_.master_addr, meeting_address(*hosts_, texts_), named);
    add_found("--master-port", texts_.master_port,
              texts_.master_port.empty() ? "a free one" : texts_.master_port, "default");
    add("--rdzv-endpoint", "not needed", named);
    add_found("--remote-paceline", texts_.remote_paceline, own_program(), "default");
  }

  void add_output() {
    if (texts_.config.empty()) {
      const std::string usual = usual_flag_file();
      add("--config", usual.empty() ? "none" : usual);
    }
    add("--log-dir", options_.log_dir.empty() ? "temporary" : options_.log_dir);
    add("--tee", texts_.tee.empty() ? "rank 0" : texts_.tee);
    add("--local-ranks-filter",
        texts_.local_ranks_filter.empty() ? "all that are shown" : texts_.local_ranks_filter);
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
    known_[flag] = {flag, value, where.empty() ? source(flag) : where};
  }

  const CLI::App& app_;
  const launch::LaunchPlan& plan_;
  const LaunchOptions& options_;
  const RunTexts& texts_;
  const CommandLine& line_;
  const std::vector<launch::Host>* hosts_;
  std::map<std::string, ConfigLine> known_;  // what the given texts came to
};

constexpr const char* kAtStart = "(known at the start)";

// The variables that a rank gets and that the job makes up as it starts: its ports, its secret and
// what its services give (JobServices).
std::vector<std::string> known_at_start(const LaunchOptions& options,
                                        const launch::Environment& inherited) {
  std::vector<std::string> names = {"PACELINE_STORE", "PACELINE_SECRET_FD", "MASTER_PORT",
                                    "PACELINE_FLIGHT_KEEP", "PACELINE_JOB_SOCKET"};
  if (!inherited.contains("PACELINE_FLIGHT_DIR")) names.push_back("PACELINE_FLIGHT_DIR");
  if (!inherited.contains("PACELINE_MEMORY_CHECKPOINT")) {
    names.push_back("PACELINE_MEMORY_CHECKPOINT");
  }
  if (!options.timeline.empty()) names.push_back("PACELINE_TIMELINE_DIR");
  if (options.may_restart() && options.fork_server) names.push_back(kForkServerVariable);
  if (options.several_nodes() && !options.part)
    names.emplace_back("MASTER_ADDR");  // that of rank 0
  return names;
}

constexpr const char* kByTheHost = "(by the host's cores)";

// Lines of the variables that a rank gets beside `inherited`. `placement`: nothing where another
// host decides it.
std::string variables_text(const LaunchOptions& options, const launch::Environment& inherited,
                           int local_rank, const launch::Placement* placement,
                           const std::string& indent) {
  launch::Placement unknown;
  unknown.ranks.resize(static_cast<std::size_t>(options.num_local_ranks));
  for (launch::RankPlacement& rank : unknown.ranks) {
    rank.num_threads = options.threads_per_rank.value_or(1);
  }
  const launch::JobAddresses known{.store = "", .master_addr = options.master_addr};
  auto worker = launch::worker_environment(inherited, options, options.place(), local_rank,
                                           placement != nullptr ? *placement : unknown, known);
  for (const std::string& name : known_at_start(options, inherited)) worker[name] = kAtStart;
  if (placement == nullptr && !options.threads_per_rank && !launch::inherited_threads(inherited)) {
    worker["OMP_NUM_THREADS"] = kByTheHost;
    if (!inherited.contains("OPENBLAS_NUM_THREADS")) worker["OPENBLAS_NUM_THREADS"] = kByTheHost;
  }
  std::string text;
  for (const auto& [name, value] : launch::added_variables(worker, inherited)) {
    const bool is_known = value != kAtStart && value != kByTheHost;
    text += fmt::format("{}{}={}\n", indent, name, is_known ? launch::shell_quoted(value) : value);
  }
  return text;
}

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
  for (int i = 0; i < options.num_local_ranks; ++i) {
    text += launch::describe_placement(options.rank_of(i), plan.placement.ranks[i],
                                       plan.placement.bound) +
            "\n";
    text += variables_text(options, inherited, i, &plan.placement, "  ");
    text += fmt::format("  {}\n", command_text(options.command));
  }
  return text;
}

std::string hosts_preview(const launch::HostsPlan& plan, const LaunchOptions& options) {
  const auto& ranks = plan.parts.front().job.part.ranks_per_host;
  std::string text = fmt::format("{} host{}, world size {}\n", plan.parts.size(),
                                 plan.parts.size() == 1 ? "" : "s", plan.job.world_size);
  const launch::Environment& sent = plan.parts.front().job.environment;
  for (const auto& [name, value] : sent) {
    text += fmt::format("  {}={}\n", name, launch::shell_quoted(value));
  }
  for (std::size_t host = 0; host < plan.parts.size(); ++host) {
    const launch::HostsPlan::Part& part = plan.parts[host];
    text += fmt::format("host {}: {}\n", part.route.name, command_text(part.route.command));
    text += fmt::format("  cd {}\n  paceline run {}\n", launch::shell_quoted(part.job.directory),
                        command_text(part.job.arguments));
    LaunchOptions there = options;
    there.node_rank = static_cast<int>(host);
    there.num_local_ranks = ranks[host];
    there.terminal = false;
    there.part = launch::HostPart{.ranks_per_host = ranks};
    for (int local = 0; local < ranks[host]; ++local) {
      text += fmt::format("  rank {}: cores by what the host has\n", there.rank_of(local));
      text += variables_text(there, sent, local, nullptr, "    ");
      text += fmt::format("    {}\n", command_text(options.command));
    }
    text += fmt::format(
        "  cores and threads: on the host, paceline run --nproc-per-node {} --dry-run shows them\n",
        ranks[host]);
  }
  return text;
}

std::string config_text(const CLI::App& app, const launch::LaunchPlan& plan, const RunTexts& texts,
                        const CommandLine& line, const std::vector<launch::Host>* hosts) {
  const auto lines = Config(app, plan, texts, line, hosts).lines();
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
