#pragma once

// What a session of calls measured, as values, and its two forms: aligned text, JSON.
//
// Thread safety: pure functions.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/report.h"
#include "apps/bench/statistics.h"

namespace paceline::bench {

// How caller and callee reach each other: as on one host, or as on two.
enum class CallWay { kUnix, kTcp };
inline constexpr CallWay kAllCallWays[] = {CallWay::kUnix, CallWay::kTcp};
std::string_view name_of(CallWay way);  // "unix", "tcp"

enum class CallMeasure { kBlocking, kPipelined, kOneWay, kCallers };
inline constexpr CallMeasure kAllCallMeasures[] = {CallMeasure::kBlocking, CallMeasure::kPipelined,
                                                   CallMeasure::kOneWay, CallMeasure::kCallers};
std::string_view name_of(CallMeasure measure);  // "blocking"

// One number that a round of a measure gives.
struct CallFigure {
  std::string name;  // "p50"
  std::string unit;  // "µs"
  bool operator==(const CallFigure&) const = default;
};

struct CallRow {
  std::string peer;  // "grpc"; catalog.h
  CallWay way = CallWay::kUnix;
  CallMeasure measure = CallMeasure::kBlocking;
  std::size_t bytes = 0;
  CallFigure figure{};
  std::vector<double> rounds{};
  // Paceline's number / this one, round by round; empty for Paceline's own.
  std::vector<double> ratios{};

  Spread spread() const { return spread_of(rounds); }
  // The machine was doing something else: the rounds differ by more than 2 times.
  bool is_noisy() const;
};

struct CallReport : ReportHead {
  bool busy = false;          // all cores computed meanwhile
  std::vector<CallRow> rows;  // by way, size, measure, figure, then contestant
};

// The note that explains "noisy"; empty if no row is noisy.
std::string noise_note(const std::vector<CallRow>& rows);
// The rows of one way, size and measure under their heading.
std::string table_of(const std::vector<CallRow>& rows, bool busy);

std::string to_json(const CallReport& report);

}  // namespace paceline::bench
