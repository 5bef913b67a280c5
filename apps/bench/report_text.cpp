#include <fmt/format.h>

#include "paceline/engine/core/counted.h"

#include "apps/bench/report.h"

namespace paceline::bench {
namespace {

constexpr const char* kReportColumns = "{:>8}  {:<20} {:>10} {:>10} {:>10} {:>9} {:>9}  {}\n";

// Four digits that mean something.
std::string microseconds_text(double microseconds) {
  const int decimals = microseconds < 10 ? 2 : microseconds < 1000 ? 1 : 0;
  return fmt::format("{:.{}f}", microseconds, decimals);
}

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
                        microseconds_text(row.median_us()), microseconds_text(row.p95_us()),
                        microseconds_text(row.p99_us()), bandwidth_text(row, row.algbw()),
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

}  // namespace paceline::bench
