#include "apps/bench/call_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "paceline/engine/core/counted.h"

namespace paceline::bench {
namespace {

constexpr const char* kCallColumns = "{:<38} {:<10} {:<27} {}\n";
constexpr double kMostRoundSpread = 2;

// Three or four digits that mean something.
std::string figure_text(double value) {
  const int decimals = value < 10 ? 2 : value < 100 ? 1 : 0;
  return fmt::format("{:.{}f}", value, decimals);
}

std::string spread_text(const std::vector<double>& values) {
  const Spread spread = spread_of(values);
  return fmt::format("{} [{}, {}]", figure_text(spread.median), figure_text(spread.min),
                     figure_text(spread.max));
}

}  // namespace

std::string_view name_of(CallWay way) { return way == CallWay::kTcp ? "tcp" : "unix"; }

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

bool CallRow::is_noisy() const {
  const Spread of_rounds = spread();
  return of_rounds.max > kMostRoundSpread * of_rounds.min;
}

std::string noise_note(const std::vector<CallRow>& rows) {
  if (std::none_of(rows.begin(), rows.end(), [](const CallRow& row) { return row.is_noisy(); }))
    return "";
  return fmt::format(
      "noisy: the rounds differ by more than {} times; the machine is busy with something else, so "
      "repeat this on an idle one",
      kMostRoundSpread);
}

std::string table_of(const std::vector<CallRow>& rows, bool busy) {
  if (rows.empty()) return "";
  const CallRow& first = rows.front();
  std::string text =
      fmt::format("{}, {}, {}, {}{}\n\n", name_of(first.measure),
                  first.way == CallWay::kTcp ? "TCP" : "one host", size_text(first.bytes),
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

}  // namespace paceline::bench
