#include "apps/run/rank_options.h"

#include <algorithm>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/topology.h"

#include "apps/cli/option_value.h"
#include "apps/run/run_options.h"

namespace paceline::apps {

namespace {

using launcher::Binding;
using launcher::BindTo;

constexpr std::string_view kMapPrefix = "map:";

std::optional<Binding> parse_map(std::string_view sets) {
  Binding binding{BindTo::kMap, {}};
  for (;;) {
    const auto end = sets.find(';');
    auto cpus = parse_cpu_list(std::string(sets.substr(0, end)));
    if (!cpus) return {};
    binding.map.push_back(std::move(*cpus));
    if (end == sets.npos) return binding;
    sets.remove_prefix(end + 1);
  }
}

}  // namespace

std::optional<Binding> parse_binding(const std::string& text) {
  for (const BindTo to :
       {BindTo::kCore, BindTo::kCache, BindTo::kNuma, BindTo::kPackage, BindTo::kNone}) {
    if (text == launcher::name_of(to)) return Binding{to, {}};
  }
  if (!text.starts_with(kMapPrefix)) return {};
  return parse_map(std::string_view(text).substr(kMapPrefix.size()));
}

std::string format_binding(const Binding& binding) {
  if (binding.to != BindTo::kMap) return launcher::name_of(binding.to);
  std::string text;
  for (const auto& cpus : binding.map) {
    text += (text.empty() ? std::string(kMapPrefix) : ";") + format_cpu_list(cpus);
  }
  return text;
}

std::optional<Binding> parse_numa_binding(const std::string& text) {
  if (text == "node") return Binding{BindTo::kNuma, {}};
  if (text == "socket") return Binding{BindTo::kPackage, {}};
  if (text == "exclusive") return Binding{BindTo::kCore, {}};
  if (text == "core-complex") return Binding{BindTo::kCache, {}};
  return {};
}

namespace {

using launcher::LaunchOptions;

OptionTarget roles_target(launcher::Roles& roles) {
  return {.read =
              [&roles](const Option& option) {
                roles = launcher::parse_roles(option.text, option.source);
              },
          .print = [&roles] { return launcher::to_text(roles); }};
}

// Reads --until. An agent that was given one role does not know the roles of the other agents.
void read_until(const Option& until, LaunchOptions& launch) {
  if (!until.given()) return;
  if (!launch.roles.empty()) return launcher::set_awaited(launch.roles, until.text, until.source);
  if (launch.role == launcher::kNoRole) {
    throw UsageError(
        fmt::format("{}: '{}': it names roles, but neither --roles nor --role is given",
                    until.source, until.text));
  }
  const auto awaited = launcher::parse_role_names(until.text, until.source);
  launch.role_serves = std::find(awaited.begin(), awaited.end(), launch.role) == awaited.end();
}

// The number of ranks on each node, if all nodes get the same number. Throws UsageError.
int ranks_per_node(const Option& option, int num_ranks, int num_nodes) {
  if (num_ranks % num_nodes != 0) {
    throw UsageError(fmt::format(
        "{}: '{}': {} cannot be divided evenly among {}: give each node its own --nproc-per-node",
        option.source, option.text, counted(num_ranks, "rank"), counted(num_nodes, "node")));
  }
  if (num_ranks / num_nodes > kMaxLocalRanks) {
    throw UsageError(fmt::format("{}: '{}': {} on one node; at most {}", option.source, option.text,
                                 counted(num_ranks / num_nodes, "rank"), kMaxLocalRanks));
  }
  return num_ranks / num_nodes;
}

}  // namespace

void declare_roles_options(OptionTable& table, LaunchOptions& launch) {
  table.value("--roles", "NAME=N,...",
              "Ranks of each role, in order, which are the workers of calls: trainer=2,observer=4 "
              "starts trainer0, trainer1, observer0, ...",
              roles_target(launch.roles));
  table.value("--until", "NAME,...",
              "End the job when the ranks of these roles have ended; the others get SIGTERM [all]",
              {.unset = "all have ended"});
}

void check_roles(const OptionTable& table, LaunchOptions& launch, std::optional<int> world_size) {
  read_until(table["--until"], launch);
  if (launch.roles.empty()) return;
  const Option& option = table["--roles"];
  const Option& per_node = table["--nproc-per-node"];
  if (table["--role"].given()) {
    throw UsageError(
        fmt::format("{} and {} exclude each other", option.source, table["--role"].source));
  }
  if (launch.min_nodes < launch.num_nodes) {
    throw UsageError(fmt::format(
        "{}: '{}': the roles set the number of ranks, so the number of nodes must be fixed; {} is "
        "{}",
        option.source, option.text, table["--nnodes"].source, table["--nnodes"].text));
  }
  const int num_ranks = launcher::num_ranks(launch.roles);
  if (!world_size && !per_node.given()) {
    launch.num_local_ranks = ranks_per_node(option, num_ranks, launch.num_nodes);
  }
  if (!world_size && launch.num_nodes == 1) world_size = launch.num_local_ranks;
  if (!world_size || *world_size == num_ranks) return;
  throw UsageError(fmt::format("{}: '{}': the counts add up to {}, but {} to start", option.source,
                               option.text, counted(num_ranks, "rank"),
                               *world_size == 1 ? "1 is" : fmt::format("{} are", *world_size)));
}

}  // namespace paceline::apps
