#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "paceline/launch/agent.h"
#include "paceline/launch/program.h"
#include "paceline/launch/supervisor.h"
#include "paceline/launch/worker_environment.h"

#include "apps/commands.h"
#include "apps/run_options.h"
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
  paceline run --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 ./train)";

// Threads that the user chose by a variable count as much as those of --threads-per-rank.
std::optional<int> threads_wanted(const launch::LaunchOptions& options) {
  if (options.threads_per_rank) return options.threads_per_rank;
  const char* text = std::getenv("OMP_NUM_THREADS");
  if (text == nullptr) return {};
  const std::string_view digits(text);
  int threads = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), threads);
  return threads > 0 ? std::optional(threads) : std::nullopt;
}

// As a shell would take it; only for reading.
std::string quoted(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-./=:,+@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

void print_dry_run(const launch::LaunchPlan& plan) {
  const auto& options = plan.options;
  fmt::print("{} rank{} on machine {} of {}, world size {}\n", options.num_local_ranks,
             options.num_local_ranks == 1 ? "" : "s", options.node_rank, options.num_nodes,
             options.world_size());
  fmt::print("program: {}\n", plan.program_path);
  const auto inherited = launch::inherited_environment();
  for (int i = 0; i < options.num_local_ranks; ++i) {
    fmt::print("{}\n", launch::describe_binding(options.rank_of(i), plan.affinity.ranks[i],
                                                plan.affinity.bind));
    const auto worker = launch::worker_environment(inherited, options, i, plan.affinity, {});
    for (const auto& [name, value] : launch::added_variables(worker, inherited)) {
      const bool at_start = name.starts_with("PACELINE_") || name.starts_with("MASTER_");
      fmt::print("  {}={}\n", name, at_start ? "(known at the start)" : quoted(value));
    }
  }
  fmt::print("command:");
  for (const std::string& word : options.command) fmt::print(" {}", quoted(word));
  fmt::print("\n");
}

void report(const launch::LaunchPlan& plan, const Topology& topology) {
  const auto& options = plan.options;
  if (options.report_bindings) {
    for (int i = 0; i < options.num_local_ranks; ++i) {
      fmt::print(
          stderr, "paceline: {}\n",
          launch::describe_binding(options.rank_of(i), plan.affinity.ranks[i], plan.affinity.bind));
    }
  }
  if (plan.affinity.oversubscribed) {
    fmt::print(
        stderr,
        "paceline: warning: {} ranks x {} threads on {} cpus{}: they will wait for each other "
        "(OMP_WAIT_POLICY=PASSIVE is set); use fewer ranks or --threads-per-rank\n",
        options.num_local_ranks, plan.affinity.ranks.front().num_threads, topology.num_cpus(),
        topology.cpu_quota ? fmt::format(" (quota {:.1f})", *topology.cpu_quota) : "");
  }
}

struct RunFormatter : CLI::Formatter {
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "Usage: paceline run [options] [--] PROGRAM [arguments]\n";
  }
};

RunTexts parse(const Arguments& arguments, CLI::App& app, CommandLine& line) {
  RunTexts texts;
  declare_run_options(app, texts);
  line = split_command_line(app, arguments);
  try {
    std::vector<std::string> reversed(line.options.rbegin(), line.options.rend());
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    texts.help = true;
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  return texts;
}

}  // namespace

int run_command(const Arguments& arguments) {
  CLI::App app("Starts PROGRAM as several ranks that train together.", "paceline run");
  app.footer(kExamples);
  auto formatter = std::make_shared<RunFormatter>();
  formatter->column_width(34);
  app.formatter(formatter);
  app.get_help_ptr()->group("Help");
  CommandLine line;
  const RunTexts texts = parse(arguments, app, line);
  if (texts.help) {
    fmt::print("{}", app.help());
    return 0;
  }
  const Topology topology = discover_topology();
  launch::LaunchPlan plan;
  plan.options = check_run_options(texts, line, topology);
  const char* path = std::getenv("PATH");
  plan.program_path =
      launch::find_program(plan.options.command.front(), path != nullptr ? path : "");
  plan.affinity = launch::plan_affinity(
      topology, {plan.options.num_local_ranks, threads_wanted(plan.options), plan.options.bind});
  if (texts.dry_run) {
    print_dry_run(plan);
    return 0;
  }
  report(plan, topology);
  return launch::run_supervised(
      [&](launch::AgentChannel channel) { return launch::run_agent(plan, std::move(channel)); });
}

}  // namespace paceline::apps
