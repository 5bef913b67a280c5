#include <fstream>
#include <optional>

#include <fmt/format.h>

#include "paceline/core/cpu_list.h"
#include "paceline/core/error.h"
#include "paceline/placement/machine_map.h"

#include "apps/commands.h"
#include "apps/run_options.h"
#include "apps/usage_error.h"

namespace paceline::apps {
namespace {

constexpr const char* kTopoExamples = R"(
Examples:
  paceline topo
  paceline topo --nproc-per-node 4 --svg ranks.svg
  paceline topo --nproc-per-node 4 --bind numa
  paceline topo --machine "package:2 l3:4 core:8 pu:2" --cpus 0-31 --nproc-per-node auto)";

struct TopoTexts {
  std::string machine, cpus, svg;
};

Topology choose_machine(const TopoTexts& texts) {
  Topology topology = texts.machine.empty() ? discover_topology() : load_topology(texts.machine);
  if (texts.cpus.empty()) return topology;
  const auto cpus = parse_cpu_list(texts.cpus);
  if (!cpus) throw UsageError(fmt::format("--cpus: '{}' is not a list like 0-3,8", texts.cpus));
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
  launch::LaunchOptions ranks;
  TopoTexts texts;
  declare_rank_options(table, ranks);
  app.add_option("--svg", texts.svg, "Draw into this file as well; -: instead, on stdout")
      ->type_name("FILE");
  app.add_option("--machine", texts.machine,
                 "Another machine: a file of lstopo (.xml), or a description in hwloc's words")
      ->type_name("FILE|TEXT");
  app.add_option("--cpus", texts.cpus, "As if only these cpus were given")->type_name("LIST");
  const CommandLine line = split_command_line(app, arguments);
  if (!line.program.empty()) {
    throw UsageError(fmt::format("'{}' was not expected", line.program.front()));
  }
  if (!table.take(line)) {
    fmt::print("{}", app.help());
    return 0;
  }
  const Topology topology = choose_machine(texts);
  std::optional<launch::Placement> placement;
  if (table["--nproc-per-node"].given()) {
    table.read();
    check_rank_options(table, topology, ranks);
    placement = launch::plan_placement(
        topology, {ranks.num_local_ranks, ranks.threads_per_rank, ranks.binding});
  }
  const launch::Placement* shown = placement ? &*placement : nullptr;
  if (texts.svg == "-") {
    fmt::print("{}", launch::draw_machine_svg(topology, shown));
    return 0;
  }
  fmt::print("{}", launch::draw_machine_text(topology, shown));
  if (!texts.svg.empty()) write_file(texts.svg, launch::draw_machine_svg(topology, shown));
  return 0;
}

}  // namespace paceline::apps
