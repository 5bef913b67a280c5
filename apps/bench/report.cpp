#include "apps/bench/report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/topology.h"

namespace paceline::bench {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

double percentile(std::vector<double> values, double percent) {
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(percent / 100 * static_cast<double>(values.size()));
  const auto index = static_cast<std::size_t>(std::max(1.0, rank)) - 1;
  return values[std::min(index, values.size() - 1)];
}

Spread spread_of(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return {median(values), *least, *most};
}

std::string rounded_text(double value, double whole_from) {
  return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < whole_from ? 1 : 0);
}

std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result(a.size());
  std::transform(a.begin(), a.end(), b.begin(), result.begin(), std::divides<>());
  return result;
}

namespace {

std::vector<double> collect(const std::vector<Round>& rounds, double Round::*figure) {
  std::vector<double> values;
  for (const Round& round : rounds) values.push_back(round.*figure);
  return values;
}

constexpr double kMaxSpread = 2, kMaxRatioToFastest = 5;

bool differs_much(const Spread& spread) { return spread.max > kMaxSpread * spread.min; }

// `also`: text about another sign of noise, in addition to rounds that differ.
std::string noise_text(const std::string& also) {
  return fmt::format(
      "noisy: the rounds differ by more than {} times{}; the machine is busy with something else, "
      "so repeat this on an idle one",
      kMaxSpread, also);
}

}  // namespace

double Row::median_us() const { return spread().median; }
double Row::p95_us() const { return bench::median(collect(rounds, &Round::p95)); }
double Row::p99_us() const { return bench::median(collect(rounds, &Round::p99)); }
Spread Row::spread() const { return spread_of(collect(rounds, &Round::median)); }
double Row::min_us() const { return spread_of(collect(rounds, &Round::min)).min; }
double Row::max_us() const { return spread_of(collect(rounds, &Round::max)).max; }
double Row::algbw() const { return algorithm_bandwidth(bytes, median_us() * 1e-6); }
// memcpy moves the same number of bytes for every operation, so its factor is 1.
double Row::busbw() const { return algbw() * (peer == "memcpy" ? 1 : bus_factor(op, ranks)); }

bool Row::is_noisy() const {
  return differs_much(spread()) || median_us() > kMaxRatioToFastest * min_us();
}

std::string ratio_text(const Row& row, const Row& own) {
  constexpr const char* kNoisy = "noisy";
  if (row.ratios.empty() || &row == &own) return row.is_noisy() ? kNoisy : "";
  const Spread spread = spread_of(row.ratios);
  const bool is_noisy = row.is_noisy() || own.is_noisy() || differs_much(spread);
  return fmt::format("{:.2f} [{:.2f}, {:.2f}]{}{}", spread.median, spread.min, spread.max,
                     is_noisy ? " " : "", is_noisy ? kNoisy : "");
}

std::string noise_note(const std::vector<Row>& rows) {
  std::size_t own = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i].bytes != rows[own].bytes || rows[i].op != rows[own].op) own = i;
    if (!ratio_text(rows[i], rows[own]).ends_with("noisy")) continue;
    return noise_text(fmt::format(", or the median call took more than {} times the fastest",
                                  kMaxRatioToFastest));
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
  const std::string cpu = cpu_property("model name");
  return {cpu.empty() ? "unknown model" : cpu, discover_topology().num_cores(), bytes / (1 << 30),
          fmt::format("{} {}", system.sysname, system.release)};
}

namespace {

constexpr const char* kReportColumns = "{:>8}  {:<20} {:>10} {:>10} {:>10} {:>9} {:>9}  {}\n";

std::string bandwidth_text(const Row& row, double bandwidth) {
  if (row.bytes == 0) return "-";
  return bandwidth < 0.1 ? fmt::format("{:.4f}", bandwidth) : fmt::format("{:.2f}", bandwidth);
}

}  // namespace

std::string table_heading(const Row& first) {
  std::string text = conditions(first);
  text += fmt::format(", {}, {}{}\n\n", counted(first.ranks, "rank"),
                      counted(first.rounds.size(), "round"), first.checked ? ", checked" : "");
  text += fmt::format(kReportColumns, "size", "", "median µs", "p95 µs", "p99 µs", "algbw", "busbw",
                      "time / paceline's [min, max]");
  return text;
}

std::string table_rows(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    const std::string size = row.bytes == 0 ? "-" : size_text(row.bytes);
    text += fmt::format(kReportColumns, &row == &rows.front() ? size : "", row.label(),
                        rounded_text(row.median_us()), rounded_text(row.p95_us()),
                        rounded_text(row.p99_us()), bandwidth_text(row, row.algbw()),
                        bandwidth_text(row, row.busbw()), ratio_text(row, rows.front()));
  }
  return text;
}

std::string to_csv(const Report& report) {
  std::string text =
      "peer,operation,dtype,placement,memory,buffers,checked,ranks,bytes,median_us,p95_us,p99_us,"
      "min_us,max_us,least_round_us,most_round_us,algbw_gb_s,busbw_gb_s,rounds\n";
  for (const Row& row : report.rows) {
    const Spread spread = row.spread();
    text += fmt::format(
        "{},{},{},{},{},{},{},{},{},{:.3f},{:.3f},{:.3f},{:.3f},{:.3f},{:.3f},"
        "{:.3f},{:.4f},{:.4f},{}\n",
        row.peer, name_of(row.op), paceline::name_of(row.dtype), name_of(row.placement),
        name_of(row.memory), row.fresh ? "fresh" : "warm", row.checked ? "yes" : "no", row.ranks,
        row.bytes, spread.median, row.p95_us(), row.p99_us(), row.min_us(), row.max_us(),
        spread.min, spread.max, row.algbw(), row.busbw(), row.rounds.size());
  }
  return text;
}

namespace {

constexpr const char* kCallColumns = "{:<38} {:<10} {:<27} {}\n";
// The value with two decimals below 10, one below 100, and none from 100 on.
std::string figure_text(double value) { return rounded_text(value, 100); }

std::string spread_text(const std::vector<double>& values) {
  const Spread spread = spread_of(values);
  return fmt::format("{} [{}, {}]", figure_text(spread.median), figure_text(spread.min),
                     figure_text(spread.max));
}

}  // namespace

std::string_view name_of(CallTransport way) { return way == CallTransport::kTcp ? "tcp" : "unix"; }

std::string_view name_of(CallMeasure measure) {
  switch (measure) {
    case CallMeasure::kBlocking:
      return "blocking";
    case CallMeasure::kPipelined:
      return "pipelined";
    case CallMeasure::kOneWay:
      return "one_way";
    case CallMeasure::kCallers:
      return "callers";
  }
  return "";
}

bool CallRow::is_noisy() const { return differs_much(spread()); }

std::string noise_note(const std::vector<CallRow>& rows) {
  const bool is_noisy =
      std::any_of(rows.begin(), rows.end(), [](const CallRow& row) { return row.is_noisy(); });
  return is_noisy ? noise_text("") : "";
}

std::string table_of(const std::vector<CallRow>& rows, bool busy) {
  if (rows.empty()) return "";
  const CallRow& first = rows.front();
  std::string text =
      fmt::format("{}, {}, {}, {}{}\n\n", name_of(first.measure),
                  first.way == CallTransport::kTcp ? "TCP" : "one host", size_text(first.bytes),
                  counted(first.rounds.size(), "round"), busy ? ", all cores computing" : "");
  text += fmt::format(kCallColumns, "", "", "median [min, max]", "paceline's / its [min, max]");
  const CallFigure* shown = nullptr;
  for (const CallRow& row : rows) {
    const bool is_next = shown == nullptr || *shown != row.figure;
    shown = &row.figure;
    std::string ratio = row.ratios.empty() ? "" : spread_text(row.ratios);
    if (row.is_noisy()) ratio += ratio.empty() ? "noisy" : " noisy";
    text += fmt::format(kCallColumns,
                        is_next ? fmt::format("{}, {}", row.figure.name, row.figure.unit) : "",
                        row.peer, spread_text(row.rounds), ratio);
  }
  return text;
}

namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson json_of(const Row& row) {
  const Spread spread = row.spread();
  OrderedJson json{{"peer", row.peer},
                   {"operation", name_of(row.op)},
                   {"dtype", paceline::name_of(row.dtype)},
                   {"placement", name_of(row.placement)},
                   {"memory", name_of(row.memory)},
                   {"buffers", row.fresh ? "fresh" : "warm"},
                   {"checked", row.checked},
                   {"ranks", row.ranks},
                   {"bytes", row.bytes},
                   {"median", spread.median},
                   {"p95", row.p95_us()},
                   {"p99", row.p99_us()},
                   {"min", row.min_us()},
                   {"max", row.max_us()},
                   {"algbw", row.algbw()},
                   {"busbw", row.busbw()},
                   {"rounds", row.rounds.size()}};
  for (const Round& round : row.rounds) {
    json["round_medians"].push_back(round.median);
    json["round_calls"].push_back(round.calls);
  }
  if (!row.ratios.empty()) json["time_to_paceline"] = row.ratios;
  return json;
}

OrderedJson json_of(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"cores", machine.cores},
          {"memory_gib", machine.memory_gib},
          {"kernel", machine.kernel}};
}

OrderedJson json_of(const ReportHead& report) {
  OrderedJson json{{"date", report.date},
                   {"command", report.command},
                   {"paceline_version", report.version},
                   {"variables", report.variables},
                   {"machine", json_of(report.machine)},
                   {"peers", OrderedJson::array()},
                   {"missing", report.missing},
                   {"notes", report.notes}};
  for (const Participant& participant : report.participants) {
    json["peers"].push_back({{"name", participant.name},
                             {"title", participant.title},
                             {"version", participant.version}});
  }
  return json;
}

OrderedJson json_of(const CallRow& row) {
  const Spread spread = row.spread();
  OrderedJson json{
      {"peer", row.peer},        {"way", name_of(row.way)},   {"measure", name_of(row.measure)},
      {"bytes", row.bytes},      {"figure", row.figure.name}, {"unit", row.figure.unit},
      {"median", spread.median}, {"min", spread.min},         {"max", spread.max},
      {"rounds", row.rounds}};
  if (!row.ratios.empty()) json["paceline_to_it"] = row.ratios;
  return json;
}

}  // namespace

std::string to_json(const CallReport& report) {
  OrderedJson json = json_of(static_cast<const ReportHead&>(report));
  json["busy"] = report.busy;
  json["rows"] = OrderedJson::array();
  for (const CallRow& row : report.rows) json["rows"].push_back(json_of(row));
  return json_text(json, 1) + "\n";
}

std::string to_json(const Report& report) {
  OrderedJson json = json_of(static_cast<const ReportHead&>(report));
  json["units"] = {{"time", "us"}, {"bandwidth", "1e9 bytes/s"}};
  json["rows"] = OrderedJson::array();
  for (const Row& row : report.rows) json["rows"].push_back(json_of(row));
  return json_text(json, 1) + "\n";
}

}  // namespace paceline::bench
