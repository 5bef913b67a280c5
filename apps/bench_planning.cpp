#include "apps/bench_planning.h"

#include <cstdio>
#include <fstream>
#include <functional>

#include <fmt/format.h>

#include "paceline/bench/forecast.h"
#include "paceline/bench/own_contestant.h"
#include "paceline/bench/pattern.h"
#include "paceline/bench/size_list.h"
#include "paceline/collectives/calibration.h"
#include "paceline/collectives/init.h"
#include "paceline/core/check.h"
#include "paceline/launch/spawn.h"
#include "paceline/rendezvous/launch_environment.h"

#include "apps/usage_error.h"

namespace paceline::apps {
namespace {

using bench::Forecast;

// A barrier has no size.
std::vector<std::size_t> sizes_for(const BenchOptions& options, Op op) {
  return op == Op::kBarrier ? std::vector<std::size_t>{0} : options.session.sizes;
}

CostModel known_costs() { return load_calibration(calibration_path()).value_or(CostModel()); }

// `body` on every rank of the group.
void in_group(const BenchOptions& options, const std::function<void(ProcessGroup&)>& body) {
  InitOptions init;
  init.group.timeout = options.session.turn_limit;
  init.group.transport = options.transport;
  init.group.algorithm = options.algorithm;
  if (detect_launch_environment().launcher != "none") {
    body(*init_process_group(init));
  } else {
    spawn(options.session.num_ranks, [&](int) { body(*init_process_group(init)); });
  }
}

std::string link_text(const char* name, const LinkCost& link, bool is_measured) {
  return fmt::format("  {:<22} {:8.2f} µs latency, {:.2f} µs a message, {:.2f} GB/s{}\n", name,
                     link.latency_s * 1e6, link.message_s * 1e6, link.bytes_per_s / 1e9,
                     is_measured ? "" : "  (not measured here)");
}

// A file that cannot be read is about to be replaced.
std::optional<CostModel> readable_calibration(const std::filesystem::path& path, bool tells) {
  try {
    return load_calibration(path);
  } catch (const Error& error) {
    if (tells) fmt::print("{}\n", error.what());
    return {};
  }
}

// How far the repetitions differed, and of what too far.
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

// Measures, says what it found, and keeps it unless that would be a loss.
void calibrate(ProcessGroup& group, bool keeps_noisy) {
  const auto path = calibration_path();
  const auto kept = readable_calibration(path, group.rank() == 0);
  const Calibration fresh = measure_costs(group, kept.value_or(CostModel()));
  if (group.rank() != 0) return;
  const CostModel& costs = fresh.costs;
  const Hosts& hosts = group.hosts();
  const bool has_neighbours = hosts.members[0].size() > 1;
  fmt::print("costs of {}, by {} ranks on {} host{}\n", costs.origin, group.world_size(),
             hosts.size(), hosts.size() == 1 ? "" : "s");
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
    fmt::print("not kept: {}. Measure again, or add --keep-noisy to replace them in {}\n", reason,
               path.string());
    return;
  }
  save_calibration(costs, path);
  fmt::print("kept in {}\n", path.string());
}

void explain(const BenchOptions& options, ProcessGroup& group) {
  if (group.rank() != 0) return;
  for (const Op op : options.session.ops) {
    for (const std::size_t bytes : sizes_for(options, op)) {
      const Dtype dtype = options.session.dtype;
      fmt::print("{}\n",
                 group.explain(op, dtype, bench::count_for(op, dtype, group.world_size(), bytes)));
    }
  }
}

// Prints what `rows_for` gives, as it comes, and writes it down.
void tabulate(const BenchOptions& options, const Planner& planner, bool is_shown,
              const std::function<std::vector<Forecast>(Op op, std::size_t bytes)>& rows_for) {
  std::vector<Forecast> all;
  for (const Op op : options.session.ops) {
    bool is_first = true;
    for (const std::size_t bytes : sizes_for(options, op)) {
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
}

void simulate(const BenchOptions& options) {
  const bench::Cluster& cluster = options.cluster;
  const CostModel costs = cluster.costs(known_costs());
  const Planner planner(Hosts::blocks(cluster.hosts, cluster.ranks), costs,
                        {.algorithm = options.algorithm, .shares_memory = cluster.ranks > 1});
  fmt::print("{}\n\n", bench::describe(cluster, costs));
  const auto which = options.explains ? bench::Which::kAll : bench::Which::kChosen;
  tabulate(options, planner, true, [&](Op op, std::size_t bytes) {
    if (options.explains) {
      const Dtype dtype = options.session.dtype;
      const auto count = bench::count_for(op, dtype, cluster.world_size(), bytes);
      fmt::print("{}\n", planner.explain({op, dtype, count}));
    }
    return bench::forecast(planner, op, options.session.dtype, bytes, which);
  });
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
  const Planner planner(
      group.hosts(), known_costs(),
      {.algorithm = options.algorithm, .shares_memory = group.transport() == "shm+tcp"});
  if (group.rank() == 0) {
    fmt::print("{} ranks on {} hosts, {}; costs: {}\n\n", group.world_size(), group.hosts().size(),
               group.transport(), planner.costs().origin);
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
  throw UsageError("--np: at least 2 ranks are needed to measure what communication costs");
}

}  // namespace

void write_bench_file(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  std::ofstream file(path, std::ios::trunc);
  file << text;
  if (!file.flush()) throw system_error(fmt::format("writing {}", path));
}

int plan_with_bench(const BenchOptions& options) {
  switch (options.mode) {
    case BenchMode::kCalibrate:
      require_others(options);
      in_group(options, [&](ProcessGroup& group) { calibrate(group, options.keeps_noisy); });
      break;
    case BenchMode::kSimulate:
      simulate(options);
      break;
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
