// The HTML page of a report: the conditions, and a table and curves for each operation.

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"

#include "apps/bench/chart.h"
#include "apps/bench/report.h"

namespace paceline::bench {
namespace {

constexpr const char* kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>paceline bench</title>
<style>
body { font-family: system-ui, sans-serif; color: #111; background: #fff; margin: 2rem auto; max-width: 920px; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
svg { width: 100%; height: auto; display: block; margin: 1rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.7rem; text-align: right; } th { border-bottom: 1px solid #555; }
td.name, th.name { text-align: left; } tr.first td { border-top: 1px solid #ddd; }
.facts { color: #444; font-size: 0.9rem; line-height: 1.5; overflow-wrap: anywhere; }
@media (max-width: 600px) { body { margin: 1rem auto; } th, td { padding: 0.2rem 0.4rem; } }
</style>
</head>
<body>
)";

// Colours that colour-blind readers can tell apart (Okabe and Ito).
ChartStyle style_of(const Row& row) {
  static const auto& styles = *new std::map<std::string, ChartStyle>{
      {"gloo", {"#e69f00", "", 's', 2}},     {"openmpi", {"#d55e00", "", 't', 2}},
      {"mpich", {"#cc79a7", "", 'd', 2}},    {"oneccl", {"#009e73", "", 's', 2}},
      {"limit", {"#000000", "7 4", '+', 2}}, {"memcpy", {"#888888", "2 4", 'x', 2}},
  };
  if (row.peer == "paceline") {
    if (row.memory == MemoryKind::kSymmetric) return {"#0072b2", "", 'o', 3};
    return {"#56b4e9", "", 'o', 3};
  }
  const auto found = styles.find(row.peer);
  return found == styles.end() ? ChartStyle{"#555555", "", 'o', 2} : found->second;
}

std::string time_text(double microseconds) {
  if (microseconds >= 1e6) return fmt::format("{:g} s", microseconds / 1e6);
  if (microseconds >= 1e3) return fmt::format("{:g} ms", microseconds / 1e3);
  return fmt::format("{:g} µs", microseconds);
}

std::string number_text(double value) { return fmt::format("{:g}", value); }

std::string byte_text(double bytes) { return size_text(static_cast<std::size_t>(bytes)); }

// The curves of one operation: one for each contestant.
std::vector<ChartSeries> curves(const std::vector<Row>& rows, bool of_times) {
  std::vector<ChartSeries> all;
  for (const Row& row : rows) {
    auto found = std::find_if(all.begin(), all.end(),
                              [&](const auto& series) { return series.label == row.label(); });
    if (found == all.end()) {
      all.push_back({row.label(), style_of(row), {}});
      found = std::prev(all.end());
    }
    const auto bytes = static_cast<double>(row.bytes);
    const Spread spread = row.spread();
    if (of_times) {
      found->points.push_back({bytes, spread.median, spread.min, spread.max});
    } else {
      const double scale = row.busbw() * spread.median;
      found->points.push_back({bytes, row.busbw(), scale / spread.max, scale / spread.min});
    }
  }
  return all;
}

std::string charts(const std::vector<Row>& rows) {
  if (rows.front().op == Op::kBarrier) return "";
  return to_svg({"Time of a call; lower is better", "bytes in the largest buffer of a rank", "time",
                 byte_text, time_text, curves(rows, true)}) +
         to_svg({"Bus bandwidth; higher is better", "bytes in the largest buffer of a rank",
                 "10⁹ bytes/s", byte_text, number_text, curves(rows, false)});
}

std::string table(const std::vector<Row>& rows) {
  std::string text =
      "<div class=\"wide\"><table>\n<tr><th>size</th><th class=\"name\"></th>"
      "<th>median<br>µs</th><th>p95<br>µs</th><th>p99<br>µs</th>"
      "<th>algbw<br>10⁹ bytes/s</th><th>busbw<br>10⁹ bytes/s</th>"
      "<th>time / paceline's<br>[min, max]</th></tr>\n";
  std::size_t bytes = 0;
  const Row* own = nullptr;
  bool first = true;
  for (const Row& row : rows) {
    const bool starts = first || row.bytes != bytes;
    first = false;
    bytes = row.bytes;
    if (starts) own = &row;
    text += fmt::format(
        "<tr{}><td>{}</td><td class=\"name\">{}</td><td>{:.2f}</td><td>{:.2f}</td>"
        "<td>{:.2f}</td><td>{:.2f}</td><td>{:.2f}</td><td>{}</td></tr>\n",
        starts ? " class=\"first\"" : "", starts && bytes > 0 ? size_text(bytes) : "",
        escaped(row.label()), row.median_us(), row.p95_us(), row.p99_us(), row.algbw(), row.busbw(),
        ratio_text(row, *own));
  }
  return text + "</table></div>\n";
}

std::string facts(const Report& report) {
  const Machine& machine = report.machine;
  std::string text =
      fmt::format("<p class=\"facts\">{}<br>{}, {}, {:.0f} GiB, {}</p>\n<p class=\"facts\">",
                  escaped(report.date), escaped(machine.cpu), counted(machine.cores, "core"),
                  machine.memory_gib, escaped(machine.kernel));
  for (const auto& [what, fact] :
       {std::pair("command", report.command), std::pair("Paceline", report.version),
        std::pair("environment", report.variables)}) {
    if (!fact.empty()) text += fmt::format("{}: {}<br>", what, escaped(fact));
  }
  for (const Participant& participant : report.participants) {
    text +=
        fmt::format("<b>{}</b>: {}<br>", escaped(participant.name), escaped(participant.version));
  }
  for (const std::string& missing : report.missing)
    text += fmt::format("missing: {}<br>", escaped(missing));
  for (const std::string& note : report.notes) text += fmt::format("note: {}<br>", escaped(note));
  return text + "</p>\n";
}

std::string section(const std::vector<Row>& rows) {
  const Row& first = rows.front();
  return fmt::format("<h2>{}, {}</h2>\n", conditions(first), counted(first.ranks, "rank")) +
         charts(rows) +
         fmt::format(
             "<p class=\"facts\">Medians of {} in which all took turns; bars show "
             "the fastest and the slowest round.</p>\n",
             counted(first.rounds.size(), "round")) +
         table(rows);
}

}  // namespace

std::string to_html(const Report& report) {
  std::string text = fmt::format("{}<h1>Collectives, side by side</h1>\n{}", kHead, facts(report));
  for (std::size_t begin = 0; begin < report.rows.size();) {
    std::size_t end = begin;
    while (end < report.rows.size() && report.rows[end].op == report.rows[begin].op) ++end;
    text += section({report.rows.begin() + static_cast<std::ptrdiff_t>(begin),
                     report.rows.begin() + static_cast<std::ptrdiff_t>(end)});
    begin = end;
  }
  return text + "</body>\n</html>\n";
}

}  // namespace paceline::bench
