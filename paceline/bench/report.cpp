#include "paceline/bench/report.h"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include "paceline/core/topology.h"

namespace paceline::bench {
namespace {

std::vector<double> collect(const std::vector<Round>& rounds, double Round::*figure) {
  std::vector<double> values;
  for (const Round& round : rounds) values.push_back(round.*figure);
  return values;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown model";
}

}  // namespace

double Row::median_us() const { return spread().median; }
double Row::p95_us() const { return bench::median(collect(rounds, &Round::p95)); }
double Row::p99_us() const { return bench::median(collect(rounds, &Round::p99)); }
Spread Row::spread() const { return spread_of(collect(rounds, &Round::median)); }
double Row::min_us() const { return spread_of(collect(rounds, &Round::min)).min; }
double Row::max_us() const { return spread_of(collect(rounds, &Round::max)).max; }
double Row::algbw() const { return algorithm_bandwidth(bytes, median_us() * 1e-6); }
// What memcpy moves depends on no operation.
double Row::busbw() const { return algbw() * (peer == "memcpy" ? 1 : bus_factor(op, ranks)); }

std::string Row::label() const {
  if (peer != "paceline" || op == Op::kBarrier) return peer;
  return fmt::format("{}, {}", peer, name_of(memory));
}

std::string conditions(const Row& row) {
  std::string text(name_of(row.op));
  if (row.op == Op::kBarrier) return text;
  if (has_counts(row.op.op)) text += ", equal counts";
  if (row.op.is_coalesced) text += fmt::format(" of {} buffers", kCoalescedBuffers);
  return text + fmt::format(", {}, {}, {}", paceline::name_of(row.dtype),
                            row.placement == Placement::kInPlace ? "in place" : "out of place",
                            row.fresh ? "freshly written" : "warm");
}

Machine this_machine() {
  struct sysinfo memory {};
  sysinfo(&memory);
  utsname system{};
  uname(&system);
  const double bytes = static_cast<double>(memory.totalram) * memory.mem_unit;
  return {cpu_model(), discover_topology().num_cores(), bytes / (1 << 30),
          fmt::format("{} {}", system.sysname, system.release)};
}

}  // namespace paceline::bench
