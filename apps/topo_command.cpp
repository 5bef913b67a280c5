// `paceline topo`: draws the machine and the cores on which ranks would run.

#include <fstream>
#include <optional>

#include <fmt/format.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/topology.h"
#include "paceline/launcher/placement/machine_map.h"

#include "apps/cli/commands.h"
#include "apps/cli/option_value.h"
#include "apps/run/run_options.h"

namespace paceline::apps {
namespace {

constexpr const char* kTopoExamples = R"(
Examples:
  paceline topo
  paceline topo --nproc-per-node 4 --svg ranks.svg
  paceline topo --nproc-per-node 4 --bind numa
  paceline topo --machine "package:2 l3:4 core:8 pu:2" --cpus 0-31 --nproc-per-node auto)";

Topology choose_machine(const OptionTable& table) {
  const Option& machine = table["--machine"];
  Topology topology = machine.given() ? load_topology(machine.text) : discover_topology();
  if (!table["--cpus"].given()) return topology;
  const auto cpus = parse_cpu_list(table["--cpus"].text);
  if (!cpus) table["--cpus"].refuse("a list like 0-3,8");
  return restrict_topology(topology, *cpus);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text << std::flush;
  if (!file) throw system_error("writing " + path);
}

}  // namespace

int topo_command(const Arguments& arguments) {
  CLI::App app("Draws this machine, and where the ranks of a job would run on it.",
               "paceline topo");
  app.footer(kTopoExamples);
  OptionTable table(app, /*has_variables=*/true);
  launcher::LaunchOptions ranks;
  declare_rank_options(table, ranks);
  table.group("Machine");
  table.value("--svg", "FILE", "Also draw into this file; -: on stdout instead", {}, kNoVariable);
  table.value("--machine", "FILE|TEXT",
              "Another machine: a file of lstopo (.xml), or a description in hwloc's syntax", {},
              kNoVariable);
  table.value("--cpus", "LIST", "Draw as if only these cpus were given", {}, kNoVariable);
  const CommandLine line = split_command_line(app, arguments);
  if (!line.program.empty()) {
    throw UsageError(fmt::format("'{}' was not expected", line.program.front()));
  }
  if (!table.take(line)) return 0;
  const Topology topology = choose_machine(table);
  std::optional<launcher::Placement> placement;
  if (table["--nproc-per-node"].given()) {
    table.read();
    check_rank_options(table, topology, ranks);
    placement = launcher::plan_placement(
        topology, {ranks.num_local_ranks, ranks.threads_per_rank, ranks.binding});
  }
  const std::string& svg = table["--svg"].text;
  const launcher::Placement* shown = placement ? &*placement : nullptr;
  if (svg == "-") {
    fmt::print("{}", launcher::draw_machine_svg(topology, shown));
    return 0;
  }
  fmt::print("{}", launcher::draw_machine_text(topology, shown));
  if (!svg.empty()) write_file(svg, launcher::draw_machine_svg(topology, shown));
  return 0;
}

}  // namespace paceline::apps
