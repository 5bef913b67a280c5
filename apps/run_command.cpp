#include <cstdlib>
#include <memory>

#include <fmt/format.h>

#include "paceline/launch/agent.h"
#include "paceline/launch/placement_warnings.h"
#include "paceline/launch/program.h"
#include "paceline/launch/supervisor.h"
#include "paceline/launch/worker_environment.h"

#include "apps/commands.h"
#include "apps/message.h"
#include "apps/run_options.h"
#include "apps/start_preview.h"
#include "apps/usage_error.h"

namespace paceline::apps {
namespace {

constexpr const char* kExamples = R"(
Every option can also be set by its variable; the command line wins.

Examples:
  paceline run --nproc-per-node 2 ./train --epochs 3
  paceline run --nproc-per-node auto --log-dir logs ./train
  paceline run --nproc-per-node 4 --all-ranks python3 train.py
  paceline run --nproc-per-node 2 --dry-run ./train
  paceline run --nproc-per-node 4 --bind numa ./train
  paceline run --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 ./train)";

// Threads that the user chose by a variable count as much as those of --threads-per-rank.
launch::PlacementRequest placement_request(const launch::LaunchOptions& options) {
  launch::PlacementRequest request{options.num_local_ranks, options.threads_per_rank,
                                   options.binding};
  if (!request.threads_per_rank) {
    request.threads_per_rank = launch::inherited_threads(launch::inherited_environment());
  }
  return request;
}

void report(const launch::LaunchPlan& plan, const Topology& topology) {
  const auto& options = plan.options;
  if (options.report_bindings) {
    for (int i = 0; i < options.num_local_ranks; ++i) {
      say("paceline: " + launch::describe_placement(options.rank_of(i), plan.placement.ranks[i],
                                                    plan.placement.bound));
    }
  }
  const auto inherited = launch::inherited_environment();
  const auto request = placement_request(options);
  const auto warnings = launch::placement_warnings({topology, request, plan.placement, inherited,
                                                    options.threads_per_rank.has_value(),
                                                    launch::find_running_jobs()});
  for (const launch::Warning& warning : warnings) {
    say("paceline: warning: " + launch::to_text(warning));
  }
}

struct RunFormatter : CLI::Formatter {
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "Usage: paceline run [options] [--] PROGRAM [arguments]\n";
  }
};

}  // namespace

int run_command(const Arguments& arguments) {
  CLI::App app("Starts PROGRAM as several ranks that train together.", "paceline run");
  app.footer(kExamples);
  auto formatter = std::make_shared<RunFormatter>();
  formatter->column_width(34);
  app.formatter(formatter);
  app.get_help_ptr()->group("Help");
  RunTexts texts;
  declare_run_options(app, texts);
  const CommandLine line = split_command_line(app, arguments);
  if (!take_options(app, line)) {
    fmt::print("{}", app.help());
    return 0;
  }
  const Topology topology = discover_topology();
  launch::LaunchPlan plan;
  plan.options = check_run_options(texts, line, topology);
  const char* path = std::getenv("PATH");
  plan.program_path =
      launch::find_program(plan.options.command.front(), path != nullptr ? path : "");
  plan.placement = launch::plan_placement(topology, placement_request(plan.options));
  if (texts.print_config) fmt::print("{}", config_text(plan, texts, line));
  if (texts.dry_run) fmt::print("{}", dry_run_text(plan));
  if (texts.dry_run || texts.print_config) return 0;
  report(plan, topology);
  return launch::run_supervised(
      [&](launch::AgentChannel channel) { return launch::run_agent(plan, std::move(channel)); });
}

}  // namespace paceline::apps
