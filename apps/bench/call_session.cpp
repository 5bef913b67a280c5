#include "apps/bench/call_session.h"

#include <algorithm>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/core/system/topology.h"

#include "apps/bench/contestant/call_contestant.h"

namespace paceline::bench {
namespace {

constexpr int kWorkers = 2;  // a caller and its callee
constexpr int kWindow = 256;
constexpr int kSomeCallers = 16, kManyCallers = 1000;
constexpr int kSlowEvery = 100, kSlowMs = 5;

// One number that a round yields, from the results of its turns.
struct Reading {
  CallFigure figure;
  double value = 0;
};

std::vector<Reading> read_blocking(std::size_t bytes, const CallTurnResult& result) {
  std::vector<Reading> readings = {{{"p50", "µs"}, result.p50_us}, {{"p99", "µs"}, result.p99_us}};
  if (bytes > kEchoedBytes) {
    const double per_us = static_cast<double>(bytes) / result.p50_us;
    readings.push_back({{"bytes / p50", "GB/s"}, per_us / 1e3});
  }
  return readings;
}

std::vector<Reading> read_callers(const std::vector<CallTurnResult>& results) {
  const CallTurnResult &some = results[0], &slow = results[1], &many = results[2];
  const std::string callers = fmt::format("{} callers", kSomeCallers);
  return {{{callers + ", p50", "µs"}, some.p50_us},
          {{callers + ", p99", "µs"}, some.p99_us},
          {{callers, "thousand/s"}, some.per_second / 1e3},
          {{"1 % sleep 5 ms: p99 of the others", "µs"}, slow.p99_us},
          {{"p99 with / without sleeping calls", "times"}, slow.p99_us / some.p99_us},
          {{"1,000 callers", "thousand/s"}, many.per_second / 1e3},
          {{"1,000 callers / " + callers, "times"}, many.per_second / some.per_second}};
}

std::vector<Reading> read(CallMeasure measure, std::size_t bytes,
                          const std::vector<CallTurnResult>& results) {
  switch (measure) {
    case CallMeasure::kBlocking:
      return read_blocking(bytes, results[0]);
    case CallMeasure::kPipelined:
      return {{{fmt::format("{} calls under way", kWindow), "thousand/s"},
               results[0].per_second / 1e3}};
    case CallMeasure::kOneWay:
      return {{{"messages", "thousand/s"}, results[0].per_second / 1e3}};
    case CallMeasure::kCallers:
      break;
  }
  return read_callers(results);
}

std::vector<CallTurn> turns_of(CallMeasure measure, std::size_t bytes, double seconds) {
  using Form = CallTurn::Form;
  CallTurn turn{.bytes = bytes,
                .reply_bytes = bytes > kEchoedBytes ? sizeof(CallHead) : bytes,
                .seconds = seconds};
  switch (measure) {
    case CallMeasure::kBlocking:
      return {turn};
    case CallMeasure::kPipelined:
      turn.form = Form::kPipelined;
      turn.width = kWindow;
      return {turn};
    case CallMeasure::kOneWay:
      turn.form = Form::kOneWay;
      turn.reply_bytes = 0;
      return {turn};
    case CallMeasure::kCallers:
      break;
  }
  turn.width = kSomeCallers;
  CallTurn slow = turn, many = turn;
  slow.slow_every = kSlowEvery;
  slow.slow_ms = kSlowMs;
  many.width = kManyCallers;
  return {turn, slow, many};
}

}  // namespace

CallSession::CallSession(CallSessionOptions options)
    : TurnTaking(options, launcher::plan_placement(discover_topology(),
                                                   {.num_local_ranks = kWorkers,
                                                    .threads_per_rank = 1,
                                                    .binding = {.to = launcher::BindTo::kNone}})),
      options_(std::move(options)) {
  report_.busy = options_.busy;
  find_contestants(
      options_, Subject::kCalls, report_, [&](const CatalogEntry& entry, Located located) {
        if (entry.name == "torch") located.launcher = options_.python;
        for (const CallTransport way : options_.ways) {
          if (entry.name == "memcpy" && way != options_.ways.front()) continue;
          sets_.push_back(std::make_unique<RankSet>(entry, located, kWorkers, plan_,
                                                    options_.variables, std::string(name_of(way))));
        }
      });
  start_all(sets_, report_);
  for (const auto& set : sets_) {
    CallEntrant entrant;
    entrant.set = set.get();
    entrant.way =
        set->option() == name_of(CallTransport::kTcp) ? CallTransport::kTcp : CallTransport::kUnix;
    entrants_.push_back(std::move(entrant));
  }
  if (options_.busy) keep_cores_busy();
}

void CallSession::keep_cores_busy() {
  for (int core = 0; core < discover_topology().num_usable_cores(); ++core) {
    busy_.push_back(start_thread("busy", [](const std::stop_token& stop) {
      for (volatile double x = 1; !stop.stop_requested();) x = x * 1.0000001;
    }));
  }
}

std::vector<CallPoint> CallSession::points() const {
  std::vector<CallPoint> points;
  for (const CallTransport way : options_.ways) {
    for (const std::size_t bytes : options_.sizes) {
      for (const CallMeasure measure : options_.measures) {
        if (bytes <= kEchoedBytes || measure == CallMeasure::kBlocking)
          points.push_back({way, bytes, measure});
      }
    }
  }
  return points;
}

std::string CallSession::text_of(const CallPoint& point) const {
  return fmt::format("{} of {} over {}", name_of(point.measure), size_text(point.bytes),
                     name_of(point.way));
}

// memcpy uses no transport; it is measured at the points with large messages.
bool CallSession::enter(CallEntrant& entrant, const CallPoint& point) {
  entrant.rows.clear();
  if (entrant.set->name() == "memcpy") return point.bytes > kEchoedBytes;
  return entrant.way == point.way;
}

std::string CallSession::take_turn(CallEntrant& entrant, const CallPoint& point, bool counts) {
  std::vector<CallTurnResult> results;
  for (const CallTurn& turn : turns_of(point.measure, point.bytes, options_.seconds)) {
    // The callee's result is empty.
    results.push_back(entrant.set->take_turn(turn, Deadline::after(options_.turn_limit)).front());
    if (!results.back().lacks.empty()) return results.back().lacks;
  }
  if (!counts) return "";
  const auto readings = read(point.measure, point.bytes, results);
  entrant.rows.resize(readings.size());
  for (std::size_t i = 0; i < readings.size(); ++i) {
    CallRow& row = entrant.rows[i];
    row.peer = entrant.set->name();
    row.way = point.way;
    row.measure = point.measure;
    row.bytes = point.bytes;
    row.figure = readings[i].figure;
    row.rounds.push_back(readings[i].value);
  }
  return "";
}

std::vector<CallRow> CallSession::finished_rows(const CallPoint& point) const {
  const auto& own = std::find_if(entrants_.begin(), entrants_.end(), [&](const auto& entrant) {
                      return entrant.way == point.way && entrant.set->name() == "paceline";
                    })->rows;
  std::vector<CallRow> rows;
  for (std::size_t figure = 0; figure < own.size(); ++figure) {
    for (const CallEntrant& entrant : entrants_) {
      if (!entrant.takes_part) continue;
      CallRow row = entrant.rows[figure];
      if (&entrant.rows != &own && row.figure.unit != "times")
        row.ratios = ratios(own[figure].rounds, row.rounds);
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace paceline::bench
