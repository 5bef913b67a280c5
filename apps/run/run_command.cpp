// `paceline run`, and `paceline remote-agent`, which a launcher starts on another host.

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/launcher/hosts/hosts_agent.h"
#include "paceline/launcher/hosts/remote_end.h"
#include "paceline/launcher/job/agent.h"
#include "paceline/launcher/job_timeline/timeline_trace.h"
#include "paceline/launcher/messages/remote_frames.h"
#include "paceline/launcher/placement/placement_warnings.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/process/program_file.h"
#include "paceline/launcher/process/supervisor.h"
#include "paceline/launcher/ranks/job_services.h"

#include "apps/cli/commands.h"
#include "apps/cli/flag_file.h"
#include "apps/cli/option_value.h"
#include "apps/cli/own_program.h"
#include "apps/run/hosts_options.h"
#include "apps/run/ignored_options.h"
#include "apps/run/meeting_options.h"
#include "apps/run/python_program.h"
#include "apps/run/run_options.h"
#include "apps/run/start_preview.h"

namespace paceline::apps {

namespace {

constexpr const char* kRunExamples = R"(
Every option can also be set by its variable, or in paceline.toml; the command line wins.

Examples:
  paceline run --nproc-per-node 2 ./train --epochs 3
  paceline run --nproc-per-node auto --log-dir logs ./train
  paceline run --nproc-per-node 4 train.py
  paceline run --nproc-per-node 4 -m package.train
  paceline run --nproc-per-node 2 --dry-run ./train
  paceline run --nproc-per-node 4 --bind numa ./train
  paceline run --roles trainer=2,observer=4 --until trainer ./train
  paceline run --hosts a:4,b:4 ./train
  paceline run --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 ./train)";

// A number of threads that the user has set by a variable is treated like --threads-per-rank.
launcher::PlacementRequest placement_request(const launcher::LaunchOptions& options) {
  launcher::PlacementRequest request{options.num_local_ranks, options.threads_per_rank,
                                     options.binding};
  if (!request.threads_per_rank) {
    request.threads_per_rank = launcher::inherited_threads(launcher::inherited_environment());
  }
  return request;
}

void report(const launcher::LaunchPlan& plan, const Topology& topology) {
  const auto& options = plan.options;
  if (options.report_bindings) {
    for (int i = 0; i < options.num_local_ranks; ++i) {
      say("paceline: " + launcher::describe_placement(options.rank_of(i), plan.placement.ranks[i],
                                                      plan.placement.bound));
    }
  }
  const auto inherited = launcher::inherited_environment();
  const auto request = placement_request(options);
  const auto warnings = launcher::placement_warnings({topology, request, plan.placement, inherited,
                                                      options.threads_per_rank.has_value(),
                                                      launcher::find_running_jobs()});
  for (const launcher::Warning& warning : warnings) {
    say("paceline: warning: " + launcher::to_text(warning));
  }
}

// Refuses a timeline whose file cannot be written. This is checked before the job starts, not after
// a long run.
void require_writable_timeline(const Option& timeline) {
  if (!timeline.given()) return;
  const std::string obstacle = launcher::obstacle_to_trace(timeline.text);
  if (obstacle.empty()) return;
  throw UsageError(fmt::format("{}: {}: {}", timeline.source, timeline.text, obstacle));
}

// One call of `paceline run`: reads the options, then runs the job on this machine or on several
// hosts.
class Run {
 public:
  // `part`: set if this process runs one host's part of a job that a launcher on another host
  // started. In that case its own messages are written to `notices_fd` (launcher/output/console.h).
  explicit Run(std::optional<launcher::HostPart> part, int notices_fd = -1)
      : part_(std::move(part)), notices_fd_(notices_fd) {
    app_.footer(kRunExamples);
    set_usage(app_, "Usage: paceline run [options] [--] PROGRAM [arguments]\n");
    declare_run_options(table_, options_);
  }

  int run(const Arguments& arguments);

 private:
  int run_here();
  int run_on(const std::vector<launcher::Host>& hosts);

  CLI::App app_{"Starts PROGRAM as several ranks that train together.", "paceline run"};
  OptionTable table_{app_, /*has_variables=*/true};
  RunOptions options_;
  std::optional<launcher::HostPart> part_;
  const int notices_fd_;
  const Topology topology_ = discover_topology();
};

int Run::run(const Arguments& arguments) {
  CommandLine line = split_command_line(app_, arguments);
  if (!part_) read_flag_file(app_, "run", line);
  if (!table_.take(line)) return 0;
  if (!part_) launcher::leave_outer_job();
  require_working_directory();
  if (!part_) {
    for (const auto& warnings : {variables_without_effect(app_), unknown_own_variables()}) {
      for (const std::string& warning : warnings) say("paceline: warning: " + warning);
    }
  }
  table_.read();
  line.program = with_interpreter(std::move(line.program));
  options_.launch.command = line.program;
  const auto hosts = part_ ? std::nullopt : chosen_hosts(table_, options_.launch);
  if (!part_ && !hosts) refuse_options_of_hosts(table_);
  const auto behind = part_ ? std::vector<std::string>() : options_behind(app_, line);
  const bool one_rank = !hosts && !table_["--nproc-per-node"].given() &&
                        !table_["--nnodes"].given() && !table_["--roles"].given();
  const std::string on_ranks = one_rank ? note_on_ranks(behind, line) : "";
  if (!on_ranks.empty()) say(on_ranks);
  const int code = hosts ? run_on(*hosts) : run_here();
  const std::string on_failure = on_ranks.empty() ? note_on_failure(behind, line, code) : "";
  if (!on_failure.empty()) say(on_failure);
  return code;
}

int Run::run_here() {
  check_run_options(table_, topology_, options_.launch);
  if (!part_) require_meeting(table_, options_.launch);
  if (!part_) require_writable_timeline(table_["--timeline"]);
  launcher::LaunchPlan plan{.options = options_.launch};
  plan.options.part = part_;
  plan.options.notices_fd = notices_fd_;
  if (part_ && part_->meeting) {  // the job has begun; another agent may coordinate it now
    plan.options.meeting.endpoint = *part_->meeting;
    plan.options.meeting.is_host = false;
  }
  plan.options.version = version_number();
  plan.options.stack_helper = "/proc/self/exe";  // this command, even if its file has been replaced
  plan.placement = launcher::plan_placement(topology_, placement_request(plan.options));
  plan.program_path = launcher::find_program(plan.options.command.front());
  if (options_.print_config) fmt::print("{}", config_text(table_, plan));
  if (options_.dry_run) fmt::print("{}", dry_run_text(plan));
  if (options_.dry_run || options_.print_config) return 0;
  report(plan, topology_);
  return launcher::run_supervised([&](launcher::AgentChannel channel) {
    return launcher::run_agent(plan, std::move(channel));
  });
}

// Checks the options here as well, so that a wrong option is refused before any connection is made.
int Run::run_on(const std::vector<launcher::Host>& hosts) {
  launcher::LaunchOptions& options = options_.launch;
  options.num_local_ranks = hosts.front().slots;
  options.node_rank = 0;
  if (!table_["--nnodes"].given()) {
    options.min_nodes = options.num_nodes = static_cast<int>(hosts.size());
  }
  if (!table_["--rdzv-id"].given()) options.run_id = id_for_hosts();
  int world_size = 0;
  for (const launcher::Host& host : hosts) world_size += host.slots;
  check_run_options(table_, topology_, options_.launch, world_size);
  require_writable_timeline(table_["--timeline"]);
  launcher::LaunchPlan first{.options = options};
  first.program_path = options.command.front();  // every host looks for the program itself
  const launcher::HostsPlan plan = plan_hosts(table_, options_, hosts);
  if (options_.print_config) {
    first.placement = launcher::plan_placement(topology_, placement_request(first.options));
    fmt::print("{}", config_text(table_, first, &hosts));
  }
  if (options_.dry_run) {
    first.options.master_addr = meeting_address(table_, hosts);
    fmt::print("{}", hosts_preview(plan, first.options));
  }
  if (options_.dry_run || options_.print_config) return 0;
  return launcher::run_supervised([&](launcher::AgentChannel channel) {
    return launcher::HostsAgent(plan, std::move(channel)).run();
  });
}

}  // namespace

int run_command(const Arguments& arguments) { return Run(std::nullopt).run(arguments); }

namespace {

// Removes the variables that set options: only the launcher sets options here, and its own
// variables must not make this process start other hosts.
void forget_options_in_variables() {
  for (const auto& [name, value] : launcher::inherited_environment()) {
    if (name.starts_with("PET_")) unsetenv(name.c_str());
  }
}

int run_job(const launcher::RemoteJob& job, int notices_fd) {
  for (const auto& [name, value] : job.environment) setenv(name.c_str(), value.c_str(), 1);
  forget_options_in_variables();
  if (chdir(job.directory.c_str()) != 0) {
    say(fmt::format("paceline run: on host {}: the working directory {}: {}", job.part.host,
                    job.directory, std::strerror(errno)));
    return kExitEnvironment;
  }
  Arguments arguments = job.arguments;
  if (job.port != 0) {
    arguments.insert(arguments.begin(), "--master-port=" + std::to_string(job.port));
  }
  return guarded("paceline run", [&] { return Run(job.part, notices_fd).run(arguments); });
}

}  // namespace

int remote_agent_command(const Arguments& arguments) {
  if (!arguments.empty()) {
    throw UsageError("the launcher starts this command on other hosts; do not start it by hand");
  }
  if (isatty(STDIN_FILENO) == 1) {
    throw UsageError(
        "the launcher starts this command on other hosts and sends it messages through stdin; do "
        "not start it by hand");
  }
  return launcher::serve_remote_end(version_number(), run_job);
}

}  // namespace paceline::apps
