#include "apps/bench/collective_session.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/topology.h"

#include "apps/bench/rank_set.h"

namespace paceline::bench {

namespace {

// A turn ends after so long, or after so many bytes, but not before kMinCalls.
constexpr double kSecondsPerTurn = 0.25;
constexpr std::size_t kBytesPerTurn = 64 << 20;
constexpr int kMinCalls = 5;

launcher::Placement plan_for(const SessionOptions& options) {
  const auto to = options.bind ? launcher::BindTo::kCore : launcher::BindTo::kNone;
  return launcher::plan_placement(
      discover_topology(),
      {.num_local_ranks = options.num_ranks, .threads_per_rank = 1, .binding = {.to = to}});
}

int calls_for(const SessionOptions& options, std::size_t bytes) {
  const auto most = static_cast<std::size_t>(options.calls);
  const std::size_t wanted = bytes == 0 ? most : kBytesPerTurn / bytes;
  return static_cast<int>(
      std::clamp<std::size_t>(wanted, std::min<std::size_t>(kMinCalls, most), most));
}

// Microseconds of each call on the slowest rank.
std::vector<double> slowest(const std::vector<TurnResult>& results) {
  std::vector<double> calls(results.front().seconds.size());
  for (const TurnResult& result : results) {
    if (result.seconds.size() != calls.size()) {
      fail(ErrorCode::kCorrupt, "the ranks timed {} and {} calls", calls.size(),
           result.seconds.size());
    }
    for (std::size_t i = 0; i < calls.size(); ++i)
      calls[i] = std::max(calls[i], result.seconds[i] * 1e6);
  }
  return calls;
}

Round figures(const std::vector<double>& calls) {
  const Spread spread = spread_of(calls);
  return {spread.median, percentile(calls, 95),         percentile(calls, 99), spread.min,
          spread.max,    static_cast<int>(calls.size())};
}

}  // namespace

struct Session::Entrant {
  RankSet* set = nullptr;  // null: out of the session
  MemoryKind memory = MemoryKind::kOrdinary;
  Row row;                 // of the operation and size under way
  bool takes_part = true;  // in it
};

Session::Session(SessionOptions options) : options_(std::move(options)), plan_(plan_for(options_)) {
  static_cast<ReportHead&>(report_) =
      begin_report(options_.command, options_.version, options_.variables);
  report_.notes = options_.notes;
  if (plan_.oversubscribed) {
    report_.notes.push_back(fmt::format("{} share {}", counted(options_.num_ranks, "rank"),
                                        counted(report_.machine.cores, "core")));
  }
  make_sets();
  start_all(sets_, report_);
  add_entrants();
}

Session::~Session() = default;

void Session::make_sets() {
  std::vector<std::string> names = {"paceline"};
  names.insert(names.end(), options_.peers.begin(), options_.peers.end());
  for (const std::string& name : names) {
    const CatalogEntry* entry = find_entry(name);
    check(entry != nullptr, "no contestant is called {}", name);
    const auto located = locate_or_note(*entry, options_.programs, report_);
    if (!located) continue;
    sets_.push_back(std::make_unique<RankSet>(
        *entry, *located, options_.num_ranks, plan_, options_.variables,
        options_.algorithm ? std::string(name_of(*options_.algorithm)) : ""));
  }
}

void Session::add_entrants() {
  for (const auto& set : sets_) {
    const auto kinds =
        set->library().has_symmetric_memory ? options_.memory : std::vector{MemoryKind::kOrdinary};
    for (const MemoryKind kind : kinds) {
      Entrant entrant;
      entrant.set = set.get();
      entrant.memory = kind;
      entrants_.push_back(std::move(entrant));
    }
  }
}

std::vector<std::size_t> Session::sizes_for(Operation op) const {
  return different_sizes(op, options_.dtype, options_.num_ranks, options_.sizes);
}

const Report& Session::run(const SessionEvents& events) {
  std::size_t wanted = 0, done = 0;
  for (const Operation op : options_.ops) wanted += sizes_for(op).size();
  try {
    for (const Operation op : options_.ops) {
      for (const std::size_t bytes : sizes_for(op)) {
        const auto rows = measure(op, bytes, events);
        ++done;
        report_.rows.insert(report_.rows.end(), rows.begin(), rows.end());
        if (const std::string note = noise_note(rows); !note.empty()) report_.note_once(note);
        if (events.on_rows) events.on_rows(rows);
      }
    }
  } catch (const Interrupted&) {
    report_.notes.push_back(interruption_note(done, wanted));
  } catch (const Error& error) {
    report_.notes.push_back(failure_note(done, wanted, error));
    throw;
  }
  return report_;
}

Turn Session::turn_for(Operation op, std::size_t bytes) const {
  Turn turn;
  turn.op = op;
  turn.dtype = options_.dtype;
  turn.placement = placement_for(op, options_.placement);
  turn.count = count_for(op, options_.dtype, options_.num_ranks, bytes);
  turn.fresh = options_.fresh;
  turn.seconds = kSecondsPerTurn;
  turn.max_calls = calls_for(options_, bytes);
  turn.min_calls = std::min(kMinCalls, turn.max_calls);
  return turn;
}

Row Session::row_for(const Entrant& entrant, const Turn& turn) const {
  return {.peer = entrant.set->name(),
          .op = turn.op,
          .dtype = turn.dtype,
          .placement = turn.placement,
          .memory = entrant.memory,
          .fresh = turn.fresh,
          .checked = options_.check && entrant.set->library().gives_results,
          .ranks = options_.num_ranks,
          .bytes = bytes_of(turn.op, turn.dtype, options_.num_ranks, turn.count)};
}

std::vector<Row> Session::measure(Operation op, std::size_t bytes, const SessionEvents& events) {
  Turn turn = turn_for(op, bytes);
  const RankSet* before = nullptr;
  for (Entrant& entrant : entrants_) {
    // A barrier has no memory, so one turn a contestant is enough.
    const bool again = op == Op::kBarrier && entrant.set == before;
    before = entrant.set;
    entrant.takes_part = entrant.set != nullptr && !again;
    if (entrant.takes_part) entrant.row = row_for(entrant, turn);
  }
  for (int round = 0; round <= options_.rounds; ++round) {
    for (Entrant& entrant : entrants_) {
      if (!entrant.takes_part) continue;
      if (events.is_interrupted && events.is_interrupted()) throw Interrupted();
      if (events.on_turn) events.on_turn(entrant.row.label(), op, entrant.row.bytes, round);
      turn.memory = entrant.memory;
      turn.check = entrant.row.checked;
      take_turn(entrant, turn, round > 0);
    }
  }
  return finished_rows();
}

std::vector<Row> Session::finished_rows() const {
  std::vector<Row> rows;
  for (const Entrant& entrant : entrants_) {
    if (entrant.takes_part) rows.push_back(entrant.row);
  }
  for (Row& row : rows) {
    if (rows.front().peer != "paceline") break;
    for (std::size_t i = 0; i < row.rounds.size(); ++i)
      row.ratios.push_back(row.rounds[i].median / rows.front().rounds[i].median);
  }
  return rows;
}

void Session::take_turn(Entrant& entrant, const Turn& turn, bool counts) {
  const std::string& title = entrant.set->title();
  try {
    const auto results = entrant.set->take_turn(turn, Deadline::after(options_.turn_limit));
    entrant.takes_part = results.front().lacks.empty();
    if (!entrant.takes_part) {
      report_.note_once(fmt::format("{} {}", title, results.front().lacks));
      return;
    }
    for (const TurnResult& result : results) {
      if (!result.difference.empty()) {
        fail(ErrorCode::kCorrupt, "the result of {} of {} is wrong: {}", name_of(turn.op),
             paceline::name_of(turn.dtype), result.difference);
      }
    }
    note_restlessness(*entrant.set, report_);
    if (counts) entrant.row.rounds.push_back(figures(slowest(results)));
  } catch (const Error& error) {
    if (entrant.set->name() == "paceline") throw;
    entrant.takes_part = false;
    entrant.set = nullptr;
    report_.notes.push_back(fmt::format("{} is left out from {} of {} on: {}", title,
                                        name_of(turn.op), size_text(entrant.row.bytes),
                                        error.what()));
  }
}

std::size_t bytes_needed(const SessionOptions& options) {
  std::size_t most = 0;
  for (const Operation op : options.ops) {
    const bool in_place = placement_for(op, options.placement) == Placement::kInPlace;
    most = std::max<std::size_t>(most, op == Op::kBarrier ? 0 : in_place ? 1 : 2);
  }
  const std::size_t largest = options.sizes.empty() ? 0 : options.sizes.back();
  return most * largest * static_cast<std::size_t>(options.num_ranks);
}

std::size_t bytes_available() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    if (word != "MemAvailable:") continue;
    std::size_t kib = 0;
    file >> kib;
    return kib << 10;
  }
  return std::numeric_limits<std::size_t>::max();  // unknown: let the kernel say
}

}  // namespace paceline::bench
