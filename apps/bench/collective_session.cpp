#include "apps/bench/collective_session.h"

#include <algorithm>

#include <fmt/format.h>

#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/topology.h"

namespace paceline::bench {

namespace {

// A turn ends after this time or this many bytes, but not before kMinCalls calls.
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

// The time of each call on the slowest rank, in microseconds.
std::vector<double> slowest(const std::vector<TurnResult>& results) {
  std::vector<double> calls(results.front().seconds.size());
  for (const TurnResult& result : results) {
    if (result.seconds.size() != calls.size()) {
      fail(ErrorCode::kCorrupt, "two ranks timed different numbers of calls, {} and {}",
           calls.size(), result.seconds.size());
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

Session::Session(SessionOptions options)
    : TurnTaking(options, plan_for(options)), options_(std::move(options)) {
  if (plan_.oversubscribed) {
    report_.notes.push_back(fmt::format("{} share {}", counted(options_.num_ranks, "rank"),
                                        counted(report_.machine.cores, "core")));
  }
  find_contestants(options_, Subject::kCollectives, report_,
                   [&](const CatalogEntry& entry, const Located& located) {
                     sets_.push_back(std::make_unique<RankSet>(
                         entry, located, options_.num_ranks, plan_, options_.variables,
                         options_.algorithm ? std::string(name_of(*options_.algorithm)) : ""));
                   });
  start_all(sets_, report_);
  add_entrants();
}

void Session::add_entrants() {
  for (const auto& set : sets_) {
    const auto kinds =
        set->library().has_symmetric_memory ? options_.memory : std::vector{MemoryKind::kOrdinary};
    for (const MemoryKind kind : kinds) {
      CollectiveEntrant entrant;
      entrant.set = set.get();
      entrant.memory = kind;
      entrant.is_first = kind == kinds.front();
      entrants_.push_back(std::move(entrant));
    }
  }
}

std::vector<Turn> Session::points() const {
  std::vector<Turn> points;
  for (const Operation op : options_.ops) {
    for (const std::size_t bytes :
         different_sizes(op, options_.dtype, options_.num_ranks, options_.sizes))
      points.push_back(turn_for(op, bytes));
  }
  return points;
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

std::size_t Session::bytes_of_point(const Turn& point) const {
  return bytes_of(point.op, point.dtype, options_.num_ranks, point.count);
}

std::string Session::text_of(const Turn& point) const {
  return fmt::format("{} of {}", name_of(point.op), size_text(bytes_of_point(point)));
}

bool Session::enter(CollectiveEntrant& entrant, const Turn& point) {
  entrant.row = {.peer = entrant.set->name(),
                 .op = point.op,
                 .dtype = point.dtype,
                 .placement = point.placement,
                 .memory = entrant.memory,
                 .fresh = point.fresh,
                 .checked = options_.check && entrant.set->library().gives_results,
                 .ranks = options_.num_ranks,
                 .bytes = bytes_of_point(point)};
  // A barrier uses no buffers, so each contestant takes part with one kind of memory only.
  return point.op != Op::kBarrier || entrant.is_first;
}

std::string Session::take_turn(CollectiveEntrant& entrant, const Turn& point, bool counts) {
  Turn turn = point;
  turn.memory = entrant.memory;
  turn.check = entrant.row.checked;
  const auto results = entrant.set->take_turn(turn, Deadline::after(options_.turn_limit));
  if (!results.front().lacks.empty()) return results.front().lacks;
  for (const TurnResult& result : results) {
    if (!result.difference.empty()) {
      fail(ErrorCode::kCorrupt, "the result of {} of {} is wrong: {}", name_of(turn.op),
           paceline::name_of(turn.dtype), result.difference);
    }
  }
  if (counts) entrant.row.rounds.push_back(figures(slowest(results)));
  return "";
}

std::vector<Row> Session::finished_rows(const Turn&) const {
  std::vector<Row> rows;
  for (const CollectiveEntrant& entrant : entrants_) {
    if (entrant.takes_part) rows.push_back(entrant.row);
  }
  for (Row& row : rows) {
    if (rows.front().peer != "paceline") break;
    for (std::size_t i = 0; i < row.rounds.size(); ++i)
      row.ratios.push_back(row.rounds[i].median / rows.front().rounds[i].median);
  }
  return rows;
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

}  // namespace paceline::bench
