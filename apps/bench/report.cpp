#include "apps/bench/report.h"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include "paceline/engine/core/topology.h"

namespace paceline::bench {
namespace {

std::vector<double> collect(const std::vector<Round>& rounds, double Round::*figure) {
  std::vector<double> values;
  for (const Round& round : rounds) values.push_back(round.*figure);
  return values;
}

constexpr double kMostSpread = 2, kMostAboveFastest = 5;

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

bool Row::is_noisy() const {
  const Spread of_rounds = spread();
  return of_rounds.max > kMostSpread * of_rounds.min || median_us() > kMostAboveFastest * min_us();
}

std::string ratio_text(const Row& row, const Row& own) {
  constexpr const char* kNoisy = "noisy";
  if (row.ratios.empty() || &row == &own) return row.is_noisy() ? kNoisy : "";
  const Spread spread = spread_of(row.ratios);
  const bool is_noisy = row.is_noisy() || own.is_noisy() || spread.max > kMostSpread * spread.min;
  return fmt::format("{:.2f} [{:.2f}, {:.2f}]{}{}", spread.median, spread.min, spread.max,
                     is_noisy ? " " : "", is_noisy ? kNoisy : "");
}

std::string noise_note(const std::vector<Row>& rows) {
  std::size_t own = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i].bytes != rows[own].bytes || rows[i].op != rows[own].op) own = i;
    if (!ratio_text(rows[i], rows[own]).ends_with("noisy")) continue;
    return fmt::format(
        "noisy: the rounds differ by more than {} times, or the median call took more than {} "
        "times the fastest; the machine is busy with something else, so repeat this on an idle one",
        kMostSpread, kMostAboveFastest);
  }
  return "";
}

void ReportHead::note_once(const std::string& note) {
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
}

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
