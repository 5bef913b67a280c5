// The modes of `paceline bench` that use the planner: --calibrate, --explain, --simulate and
// --predict.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/collectives/selection/calibration.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/launcher/spawn/spawn.h"

#include "apps/bench/command/bench_command.h"
#include "apps/bench/contestant/own_contestant.h"
#include "apps/bench/contestant/pattern.h"
#include "apps/bench/forecast.h"
#include "apps/bench/operation.h"
#include "apps/cli/option_value.h"

namespace paceline::apps {

namespace {

using bench::Forecast;

// The operations as collectives. Requires: is_plannable() is true for all of them.
std::vector<Op> planned_ops(const BenchOptions& options) {
  std::vector<Op> ops;
  for (const bench::Operation operation : options.session.ops) ops.push_back(operation.op);
  return ops;
}

// The descriptor to which leave_output_to_files() has moved standard output; empty before that.
Fd& output_of_files() {
  static Fd output;
  return output;
}

std::vector<std::size_t> sizes_for(const BenchOptions& options, Op op, int world_size) {
  return bench::different_sizes(op, options.session.dtype, world_size, options.session.sizes);
}

CostModel known_costs() { return load_calibration(calibration_path()).value_or(CostModel()); }

bool shares_memory(const ProcessGroup& group) {
  return group.transport() == "shm+tcp" || group.transport() == "shm+ucx";
}

// Refuses requests that can only be checked once the ranks have met.
void require_fitting_transport(const BenchOptions& options, const ProcessGroup& group) {
  const std::string transport = group.transport();
  if (options.transport == TransportKind::kUcx && transport.find("ucx") == std::string::npos) {
    fail(ErrorCode::kUnsupported,
         "--transport ucx is for ranks of several hosts; these are on one and communicate by {}",
         transport);
  }
  if (!options.session.algorithm) return;
  if (transport == "shm") {
    fail(ErrorCode::kUnsupported,
         "--algorithm: these ranks share memory, so there are no messages to arrange: start ranks "
         "on several hosts, or add --transport tcp");
  }
  if (*options.session.algorithm == Algorithm::kHierarchy && !shares_memory(group)) {
    fail(ErrorCode::kUnsupported,
         "--algorithm hierarchy needs several hosts, each with several ranks that share memory; "
         "these are {} on {} and communicate by {}",
         counted(group.world_size(), "rank"), counted(group.hosts().size(), "host"), transport);
  }
}

// Runs `body` on every rank of the group. The backend is the engine, whatever PACELINE_BACKEND is
// set to.
void in_group(const BenchOptions& options, const std::function<void(ProcessGroup&)>& body) {
  InitOptions init;
  init.group.timeout = options.session.turn_limit;
  init.group.link.transport = options.transport;
  init.group.planning.algorithm = options.session.algorithm;
  init.group.backend = "paceline";
  const auto work = [&](int) {
    const auto group = init_process_group(init);
    require_fitting_transport(options, *group);
    body(*group);
  };
  if (detect_launch_environment().launcher != "none") {
    work(0);
  } else {
    spawn(options.session.num_ranks, work);
  }
}

std::string link_text(const char* name, const LinkCost& link, bool is_measured) {
  return fmt::format("  {:<22} {:8.2f} µs latency, {:.2f} µs a message, {:.2f} GB/s{}\n", name,
                     link.latency_s * 1e6, link.message_s * 1e6, link.bytes_per_s / 1e9,
                     is_measured ? "" : "  (not measured here)");
}

// The stored calibration. nullopt if its file cannot be read, which is not an error because the
// file is about to be replaced. If `tells` is set, prints the reason.
std::optional<CostModel> readable_calibration(const std::filesystem::path& path, bool tells) {
  try {
    return load_calibration(path);
  } catch (const Error& error) {
    if (tells) fmt::print("{}\n", error.what());
    return {};
  }
}

// A text about the differences between repetitions. Lists every quantity if they are too large.
std::string agreement_text(const Calibration& calibration) {
  std::string text =
      fmt::format("repetitions differ by up to {:.0f}%", calibration.costs.spread * 100);
  if (calibration.is_steady()) return text + "\n";
  text += ": the machine is busy with something else. By quantity:\n";
  for (const QuantitySpread& one : calibration.spreads) {
    text += fmt::format("  {:<22} {:8.0f}%{}\n", one.quantity, one.spread * 100,
                        one.spread > kSteadySpread ? "  too much" : "");
  }
  return text;
}

// Measures the costs, prints them, and stores them unless the stored ones are more reliable.
void calibrate(ProcessGroup& group, bool keeps_noisy) {
  const auto path = calibration_path();
  const auto kept = readable_calibration(path, group.rank() == 0);
  const Calibration fresh = measure_costs(group, kept.value_or(CostModel()));
  if (group.rank() != 0) return;
  const CostModel& costs = fresh.costs;
  const Hosts& hosts = group.hosts();
  const bool has_neighbours = hosts.members[0].size() > 1;
  fmt::print("costs of {}, by {} on {}\n", costs.origin, counted(group.world_size(), "rank"),
             counted(hosts.size(), "host"));
  fmt::print("{}{}", link_text("network", costs.network, hosts.size() > 1),
             link_text("sockets of a host", costs.sockets, has_neighbours));
  fmt::print("  {:<22} {:8.2f} GB/s read\n  {:<22} {:8.2f} GB/s\n  {:<22} {:8.2f} µs\n", "reduce",
             costs.reduce_bytes_per_s / 1e9, "copy", costs.copy_bytes_per_s / 1e9,
             "meet in shared memory", costs.meet_s * 1e6);
  fmt::print("{}", agreement_text(fresh));
  if (path.empty()) {
    fmt::print("not kept: PACELINE_CALIBRATION is off, or there is no home folder\n");
    return;
  }
  const std::string reason = keeps_noisy ? "" : why_not_replace(kept, fresh);
  if (!reason.empty()) {
    fmt::print("not kept: {}. Measure again, or add --keep-noisy to replace the costs in {}\n",
               reason, path.string());
    return;
  }
  save_calibration(costs, path);
  fmt::print(
      "kept in {}{}\n", path.string(),
      fresh.is_steady() ? "" : ", although they are noisy: measure again on an idle machine");
}

void explain(const BenchOptions& options, ProcessGroup& group) {
  if (group.rank() != 0) return;
  for (const Op op : planned_ops(options)) {
    for (const std::size_t bytes : sizes_for(options, op, group.world_size())) {
      const Dtype dtype = options.session.dtype;
      fmt::print("{}\n",
                 group.explain(op, dtype, bench::count_for(op, dtype, group.world_size(), bytes)));
    }
  }
}

// Prints the rows of `rows_for` one by one, and writes them to the file. Returns false if a chosen
// algorithm could not be simulated.
bool tabulate(const BenchOptions& options, const Planner& planner, bool is_shown,
              const std::function<std::vector<Forecast>(Op op, std::size_t bytes)>& rows_for) {
  std::vector<Forecast> all;
  for (const Op op : planned_ops(options)) {
    bool is_first = true;
    for (const std::size_t bytes : sizes_for(options, op, planner.hosts().world_size())) {
      const auto rows = rows_for(op, bytes);
      if (is_shown) {
        if (is_first || options.explains)
          fmt::print("{}{}", all.empty() ? "" : "\n", forecast_heading(rows.front()));
        fmt::print("{}", forecast_rows(rows));
        std::fflush(stdout);
      }
      is_first = false;
      all.insert(all.end(), rows.begin(), rows.end());
    }
  }
  if (is_shown) write_bench_file(options.json, bench::to_json(all, planner));
  return std::none_of(all.begin(), all.end(),
                      [](const Forecast& row) { return row.is_chosen && !row.simulated; });
}

// Returns the exit code. Under a launcher only rank 0 simulates.
int simulate(const BenchOptions& options) {
  if (detect_launch_environment().rank != 0) return 0;
  const bench::Cluster& cluster = options.cluster;
  const CostModel costs = cluster.costs(known_costs());
  const bool shares = cluster.ranks > 1 && options.transport != TransportKind::kTcp;
  const Planner planner(
      Hosts::blocks(cluster.hosts, cluster.ranks),
      {.algorithm = options.session.algorithm, .costs = std::make_shared<const CostModel>(costs)},
      shares);
  fmt::print("{}{}\n\n", bench::describe(cluster, costs),
             shares || cluster.ranks == 1 ? "" : "; also over tcp inside a host");
  const auto which = options.explains ? bench::Which::kAll : bench::Which::kChosen;
  const bool is_whole = tabulate(options, planner, true, [&](Op op, std::size_t bytes) {
    if (options.explains) {
      const Dtype dtype = options.session.dtype;
      const auto count = bench::count_for(op, dtype, cluster.world_size(), bytes);
      fmt::print("{}\n", planner.explain({op, dtype, count}));
    }
    return bench::forecast(planner, op, options.session.dtype, bytes, which);
  });
  return is_whole ? 0 : 1;
}

void predict(const BenchOptions& options, ProcessGroup& group) {
  if (group.transport() != "tcp" && group.transport() != "shm+tcp") {
    fail(ErrorCode::kUnsupported,
         "--predict: the ranks of this group communicate by {}; predictions are for messages: "
         "start ranks on several hosts, or add --transport tcp",
         group.transport());
  }
  check(group.world_size() <= bench::kMaxRanks, "--predict: {} ranks; at most {} are measured",
        group.world_size(), bench::kMaxRanks);
  const Planner planner(group.hosts(),
                        {.algorithm = options.session.algorithm,
                         .costs = std::make_shared<const CostModel>(known_costs())},
                        shares_memory(group));
  if (group.rank() == 0) {
    fmt::print("{} on {}, {}; costs: {}\n\n", counted(group.world_size(), "rank"),
               counted(group.hosts().size(), "host"), group.transport(),
               provenance(planner.costs()));
  }
  tabulate(options, planner, group.rank() == 0, [&](Op op, std::size_t bytes) {
    const Dtype dtype = options.session.dtype;
    const double seconds = bench::seconds_of(group, op, dtype, bytes, options.session.calls);
    if (group.rank() != 0) return std::vector<Forecast>();
    auto rows = bench::forecast(planner, op, dtype, bytes, bench::Which::kChosen);
    rows.front().measured_s = seconds;
    return rows;
  });
}

void require_others(const BenchOptions& options) {
  if (options.session.num_ranks > 1) return;
  throw UsageError(
      "--nproc-per-node: at least 2 ranks are needed to measure what communication costs");
}

}  // namespace

void leave_output_to_files() {
  std::fflush(stdout);
  Fd& output = output_of_files();
  output.reset(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  if (!output || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) throw system_error("standard output");
}

void write_bench_file(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  if (path == kStandardOutput) {
    if (write_whole(output_of_files().get(), as_bytes(text))) return;
    throw system_error("writing to standard output");
  }
  std::ofstream file(path, std::ios::trunc);
  file << text;
  if (!file.flush()) throw system_error(fmt::format("writing {}", path));
}

int plan_with_bench(const BenchOptions& options) {
  if (detect_launch_environment().rank == 0) {
    for (const std::string& note : options.session.notes)
      fmt::print(stderr, "paceline bench: {}\n", note);
  }
  switch (options.mode) {
    case BenchMode::kCalibrate:
      require_others(options);
      in_group(options, [&](ProcessGroup& group) { calibrate(group, options.keeps_noisy); });
      break;
    case BenchMode::kSimulate:
      return simulate(options);
    case BenchMode::kExplain:
      in_group(options, [&](ProcessGroup& group) { explain(options, group); });
      break;
    case BenchMode::kPredict:
      require_others(options);
      in_group(options, [&](ProcessGroup& group) { predict(options, group); });
      break;
    case BenchMode::kMeasure:
      break;
  }
  return 0;
}

}  // namespace paceline::apps
