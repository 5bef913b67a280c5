// Collectives over a network: the contestants of `paceline bench` on hosts that are network
// namespaces of this machine, joined by links of a given rate. Needs root. The contestants take
// turns, as in that command; the columns:
//
//   bound    the time at that rate for the bytes that each of H hosts must at least send or
//            receive, whatever the number of its ranks: for an all-reduce 2 (H-1)/H x bytes. The
//            headers of Ethernet, IP and TCP, 4.4% at an MTU of 1500, are not included.
//   time     milliseconds of the slowest rank: median [least, most] of the rounds
//   of bound bound / time
//   predicted  the prediction of `paceline bench --simulate` for such a cluster with the same costs
//            (those of `--calibrate`, if any) and the link's rate without the headers, and how much
//            it differs from Paceline's median
//   cores    the share of all processors' time that all processes used during the calls; at 100%
//            the machine is the limit, not the network
//
// With --predict only Paceline is measured, and a row shows a prediction and its measurement.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/collectives/selection/calibration.h"
#include "paceline/engine/core/check.h"

#include "apps/bench/forecast.h"
#include "apps/bench/operation.h"
#include "apps/bench/report.h"
#include "benchmarks/host_contestant.h"
#include "benchmarks/spread.h"

namespace paceline::benchmarks {
namespace {

using namespace std::chrono_literals;
using harness::NetworkHosts;

struct Options {
  int hosts = 4, ranks = 1, rounds = 5;
  std::vector<double> rates = {1, 10};
  std::string ops = "all_reduce", sizes = "16M,64M";
  std::vector<std::string> peers = {"gloo", "openmpi"};
  std::vector<std::string> variables, variants;
  double flow_rate = 0;
  bool check = false, predicts = false;

  int world_size() const { return hosts * ranks; }
};

// The share of all processors' time since the last call in which they were not idle.
class BusyProcessors {
 public:
  double since_last() {
    std::ifstream file("/proc/stat");
    std::string word;
    file >> word;
    double busy = 0, all = 0, value = 0;
    for (int field = 0; field < 8 && file >> value; ++field) {
      constexpr int kIdle = 3, kWaitsForDisk = 4;
      all += value;
      if (field != kIdle && field != kWaitsForDisk) busy += value;
    }
    const double part = all > all_ ? (busy - busy_) / (all - all_) : 0;
    busy_ = busy;
    all_ = all;
    return part;
  }

 private:
  double busy_ = 0, all_ = 0;
};

struct Figures {
  std::vector<double> milliseconds, busy;  // one value for each round
};

struct Contestant {
  std::string name, title;  // the name in the catalog; the printed title, empty: the catalog's
  std::vector<std::string> variables;
};

// Paceline, possibly again with other variables, and the other contestants.
std::vector<Contestant> contestants_of(const Options& options) {
  std::vector<Contestant> all = {{"paceline", "", options.variables}};
  for (const std::string& text : options.variants) {
    const auto end = text.find(':');
    check(end != std::string::npos, "--variant: '{}' is not TITLE:NAME=VALUE[;NAME=VALUE]", text);
    Contestant variant{"paceline", text.substr(0, end), options.variables};
    std::istringstream list(text.substr(end + 1));
    for (std::string one; std::getline(list, one, ';');) variant.variables.push_back(one);
    all.push_back(variant);
  }
  for (const std::string& name : options.peers) {
    if (name != "none" && !options.predicts) all.push_back({name, "", options.variables});
  }
  return all;
}

launcher::Environment environment_of(const std::vector<std::string>& variables) {
  launcher::Environment environment;
  for (const std::string& text : variables) {
    const auto end = text.find('=');
    check(end != std::string::npos, "a rank's variable '{}' is not NAME=VALUE", text);
    environment[text.substr(0, end)] = text.substr(end + 1);
  }
  return environment;
}

// The folder of the build that this program belongs to.
std::string contestants_folder() {
  return std::filesystem::canonical("/proc/self/exe").parent_path().parent_path() / "libexec" /
         "paceline";
}

std::vector<std::unique_ptr<HostContestant>> start_all(const Options& options,
                                                       const NetworkHosts& hosts) {
  const char* path = std::getenv("PATH");
  std::vector<std::unique_ptr<HostContestant>> all;
  for (const auto& [name, title, variables] : contestants_of(options)) {
    const auto* entry = bench::find_entry(name);
    check(entry != nullptr && entry->starter != bench::Starter::kMpiexec,
          "'{}' cannot be measured on several hosts", name);
    const auto located = bench::locate(*entry, contestants_folder(), path ? path : "");
    if (!located.missing.empty()) {
      fmt::print("{}\n", located.missing);
      continue;
    }
    all.push_back(std::make_unique<HostContestant>(
        *entry, located, hosts, options.ranks, static_cast<int>(all.size()),
        title.empty() ? entry->title : title, environment_of(variables)));
    all.back()->start(Deadline::after(60s));
    fmt::print("{}: {}\n", all.back()->title(), all.back()->version());
  }
  return all;
}

// One long call, or short calls for a quarter of a second.
bench::Turn turn_for(Op op, std::size_t bytes, const Options& options) {
  bench::Turn turn;
  turn.op = op;
  turn.placement = bench::usual_placement(op);
  turn.dtype = Dtype::kFloat32;
  turn.count = bench::count_for(op, turn.dtype, options.world_size(), bytes);
  turn.check = options.check;
  turn.min_calls = 1;
  turn.max_calls = 200;
  turn.seconds = 0.25;
  return turn;
}

std::vector<Figures> measure(const std::vector<std::unique_ptr<HostContestant>>& contestants, Op op,
                             std::size_t bytes, const Options& options) {
  const bench::Turn turn = turn_for(op, bytes, options);
  std::vector<Figures> figures(contestants.size());
  for (int round = 0; round <= options.rounds; ++round) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      BusyProcessors processors;
      processors.since_last();
      const auto seconds = contestants[i]->take_turn(turn, Deadline::after(120s));
      const double busy = processors.since_last();
      if (round == 0) continue;  // the first round warms up
      figures[i].milliseconds.push_back(1e3 * bench::median(seconds));
      figures[i].busy.push_back(1e2 * busy);
    }
  }
  return figures;
}

// TCP carries 1448 of the 1514 bytes that a link with an MTU of 1500 counts for a packet.
constexpr double kPayloadPart = 1448.0 / 1514.0;

// With a rate of 0, uses the link rate of the costs.
bench::Forecast predict(const Options& options, double rate, Op op, std::size_t bytes) {
  bench::Cluster cluster{.hosts = options.hosts,
                         .ranks = options.ranks,
                         .link_bytes_per_s = rate * 1e9 / 8 * kPayloadPart,
                         .latency_s = {}};
  if (rate == 0) cluster.link_bytes_per_s.reset();
  const CostModel known = load_calibration(calibration_path()).value_or(CostModel());
  const Planner planner(Hosts::blocks(cluster.hosts, cluster.ranks),
                        {.costs = std::make_shared<const CostModel>(cluster.costs(known))},
                        /*shares_memory=*/cluster.ranks > 1);
  return bench::forecast(planner, op, Dtype::kFloat32, bytes, bench::Which::kChosen).front();
}

// The bytes that each host must send or receive at least.
double bound_bytes(Op op, const Options& options, std::size_t bytes) {
  const auto size = static_cast<double>(bytes);
  const double elsewhere = (options.hosts - 1.0) / options.hosts;  // the part of all data or ranks
  switch (op) {
    case Op::kAllReduce:
      return 2 * elsewhere * size;
    case Op::kBroadcast:
    case Op::kReduce:
      return options.hosts > 1 ? size : 0;
    case Op::kAllToAll:
      return options.ranks * elsewhere * size;
    default:
      return elsewhere * size;
  }
}

std::string of_bound(double bound_ms, double milliseconds) {
  return bound_ms > 0 ? fmt::format("{:.3f}", bound_ms / milliseconds) : "-";
}

void print_rows(const std::vector<std::unique_ptr<HostContestant>>& contestants,
                const std::vector<Figures>& figures, std::size_t bytes, double bound_ms) {
  for (std::size_t i = 0; i < contestants.size(); ++i) {
    const auto& mine = figures[i].milliseconds;
    fmt::print("| {} | {} | {} | {} | {} | {:.0f}% |\n", size_text(bytes), contestants[i]->title(),
               with_spread(mine), of_bound(bound_ms, bench::median(mine)),
               with_spread(bench::ratios(mine, figures[0].milliseconds)),
               bench::median(figures[i].busy));
  }
  std::fflush(stdout);
}

void print_prediction(const bench::Forecast& forecast, double bound_ms, double measured_ms) {
  const double predicted_ms = forecast.simulated->seconds * 1e3;
  fmt::print("| {} | predicted ({}) | {:.2f} | {} | {:+.1f}% | |\n", size_text(forecast.bytes),
             name_of(forecast.candidate.algorithm), predicted_ms, of_bound(bound_ms, predicted_ms),
             (predicted_ms / measured_ms - 1) * 100);
}

void print_beside(const bench::Forecast& forecast, const Figures& measured) {
  const double predicted_ms = forecast.simulated->seconds * 1e3;
  const double error = predicted_ms / bench::median(measured.milliseconds) - 1;
  fmt::print("| {} | {} | {} | {} | {:.2f} | {:+.1f}% | {:.0f}% |\n", name_of(forecast.op),
             size_text(forecast.bytes), name_of(forecast.candidate.algorithm),
             with_spread(measured.milliseconds), predicted_ms, error * 100,
             bench::median(measured.busy));
  std::fflush(stdout);
}

std::vector<Op> ops_of(const Options& options) {
  std::vector<Op> ops;
  std::istringstream list(options.ops);
  for (std::string name; std::getline(list, name, ',');) {
    const auto op = bench::op_named(name);
    check(op && bench::is_plannable(*op) && *op != Op::kBarrier,
          "--ops: '{}' cannot be measured here", name);
    ops.push_back(op->op);
  }
  return ops;
}

void print_heading(const Options& options, double rate, const std::string& what) {
  const std::string link =
      rate > 0 ? fmt::format("{} Gbit/s", rate) : std::string("links without a limit");
  fmt::print("\n{} of float32, {} hosts x {} ranks, {}{}, {} rounds\n\n", what, options.hosts,
             options.ranks, link,
             options.flow_rate > 0 ? fmt::format(" ({} each connection)", options.flow_rate) : "",
             options.rounds);
  fmt::print("{}", options.predicts
                       ? "| operation | size | algorithm | measured, ms | predicted, ms | error | "
                         "cores |\n|---|---|---|---|---|---|---|\n"
                       : "| size | contestant | time, ms | of bound | time / Paceline's | cores "
                         "|\n|---|---|---|---|---|---|\n");
}

void run(const Options& options) {
  const std::string reason = NetworkHosts::why_not();
  if (!reason.empty()) fail(ErrorCode::kUnsupported, "{}", reason);
  const auto machine = bench::this_machine();
  fmt::print("{}, {} cores, Linux {}\n", machine.cpu, machine.cores, machine.kernel);
  const auto ops = ops_of(options);
  for (const double rate : options.rates) {
    const NetworkHosts hosts(options.hosts, rate, options.flow_rate);
    const auto contestants = start_all(options, hosts);
    if (options.predicts) print_heading(options, rate, "predictions");
    for (const Op op : ops) {
      if (!options.predicts) print_heading(options, rate, std::string(name_of(op)));
      for (const std::size_t bytes : bench::parse_sizes(options.sizes)) {
        const auto forecast = predict(options, rate, op, bytes);
        const auto figures = measure(contestants, op, bytes, options);
        if (options.predicts) {
          print_beside(forecast, figures[0]);
          continue;
        }
        const double bound_ms =
            rate > 0 ? bound_bytes(op, options, bytes) * 8 / (rate * 1e9) * 1e3 : 0;
        if (bound_ms > 0) {
          fmt::print("| {} | bound | {:.2f} | 1.000 | | |\n", size_text(bytes), bound_ms);
        }
        print_rows(contestants, figures, bytes, bound_ms);
        print_prediction(forecast, bound_ms, bench::median(figures[0].milliseconds));
      }
    }
  }
}

}  // namespace
}  // namespace paceline::benchmarks

int main(int argc, char** argv) {
  paceline::benchmarks::Options options;
  CLI::App app("collectives among hosts that are network namespaces; needs root");
  app.add_option("--hosts", options.hosts, "how many")->check(CLI::Range(2, 16));
  app.add_option("--ranks", options.ranks, "ranks a host")->check(CLI::Range(1, 16));
  app.add_option("--rate", options.rates, "of each link, in Gbit/s; 0: no limit")->delimiter(',');
  app.add_option("--flow-rate", options.flow_rate, "of each connection, in Gbit/s; 0: the link's");
  app.add_option("--ops", options.ops, "operations, as paceline bench takes them");
  app.add_option("--sizes", options.sizes, "as paceline bench takes them");
  app.add_option("--peer", options.peers, "gloo, openmpi; or none")->delimiter(',');
  app.add_option("--rounds", options.rounds, "interleaved rounds")->check(CLI::Range(1, 1000));
  app.add_option("--env", options.variables, "NAME=VALUE for the ranks")->delimiter(',');
  app.add_option("--variant", options.variants,
                 "TITLE:NAME=VALUE[;NAME=VALUE]: Paceline again, with these variables too");
  app.add_flag("--predict", options.predicts, "Paceline alone, beside its prediction");
  app.add_flag("--check", options.check, "compare every result with the right one");
  CLI11_PARSE(app, argc, argv);
  try {
    paceline::benchmarks::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "hosts_bench: {}\n", error.what());
    return 1;
  }
}
