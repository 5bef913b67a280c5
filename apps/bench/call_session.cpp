#include "apps/bench/call_session.h"

#include <algorithm>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/core/system/topology.h"

#include "apps/bench/contestant/call_contestant.h"
#include "apps/bench/rank_set.h"

namespace paceline::bench {
namespace {

constexpr int kWorkers = 2;  // a caller and its callee
constexpr int kWindow = 256;
constexpr int kSomeCallers = 16, kManyCallers = 1000;
constexpr int kSlowEvery = 100, kSlowMs = 5;

// A number of a round, from the results of its turns.
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
          {{"that / p99 without", "times"}, slow.p99_us / some.p99_us},
          {{"1,000 callers", "thousand/s"}, many.per_second / 1e3},
          {{fmt::format("that / {}", callers), "times"}, many.per_second / some.per_second}};
}

std::vector<Reading> read(CallMeasure measure, std::size_t bytes,
                          const std::vector<CallTurnResult>& results) {
  switch (measure) {
    case CallMeasure::kBlocking:
      return read_blocking(bytes, results[0]);
    case CallMeasure::kPipelined:
      return {{{fmt::format("{} under way", kWindow), "thousand/s"}, results[0].per_second / 1e3}};
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

struct CallSession::Point {
  CallWay way;
  std::size_t bytes;
  CallMeasure measure;
};

// A contestant over one way.
struct CallSession::Entrant {
  RankSet* set = nullptr;  // null: out of the session
  CallWay way = CallWay::kUnix;
  bool takes_part = true;       // at the point under way
  std::vector<CallRow> rows{};  // of that point, a figure each
};

CallSession::CallSession(CallSessionOptions options)
    : options_(std::move(options)),
      plan_(launcher::plan_placement(discover_topology(),
                                     {.num_local_ranks = kWorkers,
                                      .threads_per_rank = 1,
                                      .binding = {.to = launcher::BindTo::kNone}})) {
  static_cast<ReportHead&>(report_) = begin_report(options_.command, options_.version, {});
  report_.busy = options_.busy;
  make_sets();
  start_all(sets_, report_);
  for (const auto& set : sets_) {
    entrants_.push_back(
        {.set = set.get(), .way = set->option() == "tcp" ? CallWay::kTcp : CallWay::kUnix});
  }
  if (options_.busy) keep_cores_busy();
}

CallSession::~CallSession() = default;

void CallSession::make_sets() {
  std::vector<std::string> names = {"paceline"};
  names.insert(names.end(), options_.peers.begin(), options_.peers.end());
  for (const std::string& name : names) {
    const CatalogEntry* entry = find_entry(name, Subject::kCalls);
    check(entry != nullptr, "no contestant is called {}", name);
    auto located = locate_or_note(*entry, options_.programs, report_);
    if (!located) continue;
    if (name == "torch") located->launcher = options_.python;
    for (const CallWay way : options_.ways) {
      if (name == "memcpy" && way != options_.ways.front()) continue;  // it has no way
      sets_.push_back(std::make_unique<RankSet>(
          *entry, *located, kWorkers, plan_,
          launcher::Environment{{kSpinVariable, std::to_string(options_.spin.count())}},
          std::string(name_of(way))));
    }
  }
}

void CallSession::keep_cores_busy() {
  for (int core = 0; core < discover_topology().num_usable_cores(); ++core) {
    busy_.push_back(start_thread("busy", [](const std::stop_token& stop) {
      for (volatile double x = 1; !stop.stop_requested();) x = x * 1.0000001;
    }));
  }
}

std::vector<CallSession::Point> CallSession::points() const {
  std::vector<Point> points;
  for (const CallWay way : options_.ways) {
    for (const std::size_t bytes : options_.sizes) {
      for (const CallMeasure measure : options_.measures) {
        if (bytes <= kEchoedBytes || measure == CallMeasure::kBlocking)
          points.push_back({way, bytes, measure});
      }
    }
  }
  return points;
}

const CallReport& CallSession::run(const CallSessionEvents& events) {
  const std::vector<Point> wanted = points();
  std::size_t done = 0;
  try {
    for (const Point& point : wanted) {
      const auto rows = measure(point, events);
      ++done;
      report_.rows.insert(report_.rows.end(), rows.begin(), rows.end());
      if (const std::string note = noise_note(rows); !note.empty()) report_.note_once(note);
      if (events.on_rows) events.on_rows(rows);
    }
  } catch (const Interrupted&) {
    report_.notes.push_back(interruption_note(done, wanted.size()));
  } catch (const Error& error) {
    report_.notes.push_back(failure_note(done, wanted.size(), error));
    throw;
  }
  return report_;
}

std::vector<CallRow> CallSession::measure(const Point& point, const CallSessionEvents& events) {
  for (Entrant& entrant : entrants_) {
    entrant.rows.clear();
    entrant.takes_part = entrant.set != nullptr;
    if (!entrant.takes_part) continue;
    const bool is_memcpy = entrant.set->name() == "memcpy";
    entrant.takes_part = is_memcpy ? point.bytes > kEchoedBytes : entrant.way == point.way;
  }
  for (int round = 0; round <= options_.rounds; ++round) {
    for (Entrant& entrant : entrants_) {
      if (!entrant.takes_part) continue;
      if (events.is_interrupted && events.is_interrupted()) throw Interrupted();
      take_turns(entrant, point, round > 0);
    }
  }
  return finished_rows(point.way);
}

std::vector<CallRow> CallSession::finished_rows(CallWay way) const {
  const auto& own = std::find_if(entrants_.begin(), entrants_.end(), [&](const Entrant& entrant) {
                      return entrant.way == way && entrant.set->name() == "paceline";
                    })->rows;
  std::vector<CallRow> rows;
  for (std::size_t figure = 0; figure < own.size(); ++figure) {
    for (const Entrant& entrant : entrants_) {
      if (!entrant.takes_part) continue;
      CallRow row = entrant.rows[figure];
      if (&entrant.rows != &own && row.figure.unit != "times")
        row.ratios = ratios(own[figure].rounds, row.rounds);
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

void CallSession::take_turns(Entrant& entrant, const Point& point, bool counts) {
  const std::string& title = entrant.set->title();
  try {
    std::vector<CallTurnResult> results;
    for (const CallTurn& turn : turns_of(point.measure, point.bytes, options_.seconds)) {
      // The callee's result says nothing.
      results.push_back(entrant.set->take_turn(turn, Deadline::after(options_.turn_limit)).front());
      if (const std::string& lacks = results.back().lacks; !lacks.empty()) {
        entrant.takes_part = false;
        return report_.note_once(fmt::format("{} {}", title, lacks));
      }
    }
    note_restlessness(*entrant.set, report_);
    if (!counts) return;
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
  } catch (const Error& error) {
    if (entrant.set->name() == "paceline") throw;
    report_.notes.push_back(fmt::format("{} is left out from {} of {} over {} on: {}", title,
                                        name_of(point.measure), size_text(point.bytes),
                                        name_of(point.way), error.what()));
    entrant.takes_part = false;
    entrant.set = nullptr;
  }
}

}  // namespace paceline::bench
