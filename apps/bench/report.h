#pragma once

// The results of both kinds of sessions as values, and the formats of a report: aligned text and
// JSON for both kinds, CSV and an HTML page for collectives only. Times are in microseconds,
// bandwidths in 10^9 bytes per second.
//
// Thread safety: pure functions.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/operation.h"

namespace paceline::bench {

// Medians and percentiles of measured times. These functions require at least one value.

// The middle value, or the mean of the two middle ones.
double median(std::vector<double> values);

// The smallest value such that at least `percent` of the values do not exceed it (nearest rank).
double percentile(std::vector<double> values, double percent);

struct Spread {
  double median = 0, min = 0, max = 0;
  bool operator==(const Spread&) const = default;
};
Spread spread_of(const std::vector<double>& values);

// The quotients a[i] / b[i]. Requires: a.size() == b.size().
std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b);

// The value as text: with two decimals below 10, one below `whole_from`, and none from `whole_from`
// on.
std::string rounded_text(double value, double whole_from = 1000);

// One round's calls of one contestant.
struct Round {
  // The time of a call is that of its slowest rank.
  double median = 0, p95 = 0, p99 = 0, min = 0, max = 0;
  int calls = 0;
};

struct Row {
  std::string peer;  // name in the catalog (catalog.h): "gloo"
  Operation op;
  Dtype dtype = Dtype::kFloat32;
  Placement placement = Placement::kInPlace;
  MemoryKind memory = MemoryKind::kOrdinary;
  bool fresh = true;
  bool checked = false;
  int ranks = 0;
  std::size_t bytes = 0;
  std::vector<Round> rounds;
  // For each round, the time of this row divided by that of paceline's first row at this point.
  // Empty if there is no row of paceline.
  std::vector<double> ratios;

  // Medians of the rounds' figures.
  double median_us() const;
  double p95_us() const;
  double p99_us() const;
  Spread spread() const;  // spread of the rounds' medians
  double min_us() const;  // over all calls, like max_us()
  double max_us() const;
  double algbw() const;
  double busbw() const;
  // Whether other programs probably disturbed the measurement: the rounds' medians differ by more
  // than a factor of 2, or the median call took more than 5 times as long as the fastest.
  bool is_noisy() const;
  // The name of the row in tables and charts: "paceline, ordinary", "gloo".
  std::string label() const;
};

struct Machine {
  std::string cpu;
  int cores = 0;
  double memory_gib = 0;
  std::string kernel;
  bool operator==(const Machine&) const = default;
};
Machine this_machine();

struct Participant {
  std::string name, title, version;
};

// The members that every kind of report begins with.
struct ReportHead {
  std::string date;       // UTC, ISO 8601
  std::string command;    // as typed
  std::string version;    // of Paceline
  std::string variables;  // from variables_in_effect() (rank_set.h)
  Machine machine;
  std::vector<Participant> participants;
  std::vector<std::string> missing;  // absent contestants, the reasons, and what to install
  std::vector<std::string> notes;    // other facts that the reader must know

  void note_once(const std::string& note);
};

struct Report : ReportHead {
  std::vector<Row> rows;  // in the order of operations, then sizes, then contestants
};

// The ratios' median and range, and a mark if they are not reliable: "2.00 [1.90, 2.10]" or
// "3996.00 [1.10, 8000.00] noisy". `own`: paceline's row, to which the ratios relate. For that row
// itself the text is "noisy" or empty.
std::string ratio_text(const Row& row, const Row& own);
// The note that explains "noisy"; empty if no row is noisy.
std::string noise_note(const std::vector<Row>& rows);

// The conditions that all rows of an operation have in common: "all_reduce, float32, in place,
// freshly written".
std::string conditions(const Row& row);
// The heading of a table: "all_reduce, float32, in place, freshly written, 2 ranks, 5 rounds", and
// the names of the columns.
std::string table_heading(const Row& first);
// The lines for the rows of one operation and size, in the columns of the heading.
std::string table_rows(const std::vector<Row>& rows);

std::string to_csv(const Report& report);
std::string to_json(const Report& report);
// A self-contained page: it loads no script, font or image.
std::string to_html(const Report& report);

// How caller and callee communicate: as on one host (Unix sockets), or as on two hosts (TCP).
enum class CallTransport { kUnix, kTcp };
inline constexpr CallTransport kAllCallWays[] = {CallTransport::kUnix, CallTransport::kTcp};
std::string_view name_of(CallTransport way);  // "unix", "tcp"

enum class CallMeasure { kBlocking, kPipelined, kOneWay, kCallers };
inline constexpr CallMeasure kAllCallMeasures[] = {CallMeasure::kBlocking, CallMeasure::kPipelined,
                                                   CallMeasure::kOneWay, CallMeasure::kCallers};
std::string_view name_of(CallMeasure measure);  // "blocking"

// The name and unit of one number that a round yields.
struct CallFigure {
  std::string name;  // "p50"
  std::string unit;  // "µs"
  bool operator==(const CallFigure&) const = default;
};

struct CallRow {
  std::string peer;  // name in the catalog (catalog.h): "grpc"
  CallTransport way = CallTransport::kUnix;
  CallMeasure measure = CallMeasure::kBlocking;
  std::size_t bytes = 0;
  CallFigure figure{};
  std::vector<double> rounds{};
  // For each round, Paceline's number / this row's. Empty for Paceline and for the unit "times".
  std::vector<double> ratios{};

  Spread spread() const { return spread_of(rounds); }
  // Whether other programs probably disturbed the measurement: the rounds differ by more than a
  // factor of 2.
  bool is_noisy() const;
};

struct CallReport : ReportHead {
  bool busy = false;          // all cores computed during the measurement
  std::vector<CallRow> rows;  // ordered by transport, size, measure, figure, contestant
};

// The note that explains "noisy"; empty if no row is noisy.
std::string noise_note(const std::vector<CallRow>& rows);
// The table of the rows of one transport, size and measure, with its heading.
std::string table_of(const std::vector<CallRow>& rows, bool busy);

std::string to_json(const CallReport& report);

}  // namespace paceline::bench
