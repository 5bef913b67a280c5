#include "apps/bench/command/bench_options.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/option_text.h"

#include "apps/bench/catalog.h"
#include "apps/bench/contestant/pattern.h"
#include "apps/bench/operation.h"
#include "apps/cli/option_value.h"

namespace paceline::apps {

namespace {

using bench::MemoryKind;
using bench::Placement;

constexpr const char* kUsualSizes = "4K:64M";
constexpr long kMaxCalls = 10000, kMaxBenchRounds = 1000, kMaxBenchSeconds = 86400;

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const bench::Operation op : bench::measurable_ops()) names.emplace_back(name_of(op));
  names.emplace_back("all");
  return names;
}

// The operations that the texts name. The word "all" means the operations in `all`.
std::vector<bench::Operation> ops_of(const std::vector<std::string>& texts,
                                     const std::vector<bench::Operation>& all) {
  std::vector<bench::Operation> ops;
  for (const std::string& text : texts) {
    for (const std::string& name : items_of(text)) {
      if (name == "all") {
        for (const bench::Operation op : all) add_once(ops, op);
        continue;
      }
      const auto op = bench::op_named(name);
      if (name == "rpc") {
        throw UsageError(
            "operation: rpc cannot be combined with other operations and has its own options: "
            "paceline bench rpc [options]");
      }
      if (!op) {
        refuse_value("operation", name, one_of(op_names(), name));
      }
      add_once(ops, *op);
    }
  }
  if (ops.empty()) {
    throw UsageError(
        fmt::format("no operation given: paceline bench OPERATION [options]; one of {}",
                    fmt::join(op_names(), ", ")));
  }
  return ops;
}

// The operations for the mode. If none is given, kSimulate and kExplain use all_reduce.
std::vector<bench::Operation> ops_for(BenchMode mode, const std::vector<std::string>& texts) {
  if (mode == BenchMode::kCalibrate) return {};
  if (mode == BenchMode::kMeasure) return ops_of(texts, bench::measurable_ops());
  std::vector<bench::Operation> plannable;
  for (const bench::Operation op : bench::measurable_ops()) {
    if (bench::is_plannable(op)) plannable.push_back(op);
  }
  if (texts.empty() && mode != BenchMode::kPredict) return {Op::kAllReduce};
  auto ops = ops_of(texts, plannable);
  for (const bench::Operation op : ops) {
    if (bench::is_plannable(op)) continue;
    throw UsageError(fmt::format("operation: {} can only be measured, not planned", name_of(op)));
  }
  return ops;
}

// Reads the name of one of the values in `all`.
template <class Value, class All>
OptionTarget named_target(Value& value, const All& all) {
  std::vector<std::pair<std::string, Value>> words;
  for (const auto one : all) words.emplace_back(name_of(one), one);
  return word_target(value, words);
}

// The placement that the option names. Operations that do not support it are measured in their
// usual one, with a note. Throws UsageError if no operation supports it.
std::optional<Placement> placement_of(const Option& option,
                                      const std::vector<bench::Operation>& ops,
                                      std::vector<std::string>& notes) {
  const std::string& text = option.text;
  if (text.empty()) return {};
  if (text != "in" && text != "out") option.refuse("in or out");
  const Placement placement = text == "in" ? Placement::kInPlace : Placement::kOutOfPlace;
  std::vector<std::string_view> others;
  bool serves_any = false;
  for (const bench::Operation op : ops) {
    if (op == Op::kBarrier) continue;
    serves_any |= bench::has_form(op, placement);
    if (!bench::has_form(op, placement)) others.push_back(name_of(op));
  }
  if (others.empty()) return placement;
  const std::string what =
      fmt::format("{} {} {} only", fmt::join(others, ", "), others.size() == 1 ? "works" : "work",
                  placement == Placement::kInPlace ? "out of place" : "in place");
  if (!serves_any) throw UsageError(fmt::format("--placement: '{}': {}", text, what));
  notes.push_back(fmt::format("--placement {}: {}; measured in that form", text, what));
  return placement;
}

void read_memory(const Option& option, std::vector<MemoryKind>& kinds) {
  kinds.clear();
  for (const std::string& item : items_of(option.text)) {
    if (item != "symmetric" && item != "ordinary") {
      refuse_value(option.source, item, "symmetric, ordinary or both with a comma");
    }
    add_once(kinds, item == "symmetric" ? MemoryKind::kSymmetric : MemoryKind::kOrdinary);
  }
}

constexpr const char* kLimitOfLimit =
    "limit: it is measured only for float32 and 2 ranks, with all_reduce, reduce_scatter, "
    "all_gather, broadcast and all_to_all in their usual form";

// Whether the hand-written program `limit` supports any of the session's operations, with the
// session's placement, type and number of ranks.
bool limit_applies(const bench::SessionOptions& session) {
  constexpr std::array kByHand = {Op::kAllReduce, Op::kReduceScatter, Op::kAllGather,
                                  Op::kBroadcast, Op::kAllToAll};
  const auto has_limit = [&](bench::Operation op) {
    const auto usual = bench::usual_placement(op);
    return !op.is_coalesced && std::find(kByHand.begin(), kByHand.end(), op.op) != kByHand.end() &&
           bench::placement_for(op, session.placement) == usual;
  };
  return session.num_ranks == 2 && session.dtype == Dtype::kFloat32 &&
         std::any_of(session.ops.begin(), session.ops.end(), has_limit);
}

// The peers that the option names, plus memcpy, and plus `limit` if that program supports one of
// the operations. Call this after the operations, the number of ranks and the type are known.
std::vector<std::string> peers_of(const Option& option, const bench::SessionOptions& session,
                                  std::vector<std::string>& notes) {
  if (!option.given()) return {};
  auto peers = read_peers(option, bench::Subject::kCollectives, {"memcpy", "limit"});
  const auto items = items_of(option.text);
  const bool asks_limit = std::any_of(items.begin(), items.end(), [](const std::string& item) {
    return item == "all" || item == "limit";
  });
  if (limit_applies(session)) {
    peers.emplace_back("limit");
  } else if (asks_limit) {
    notes.emplace_back(kLimitOfLimit);
  }
  peers.emplace_back("memcpy");
  return peers;
}

void read_cluster(const Option& option, bench::Cluster& cluster) {
  try {
    cluster = bench::parse_cluster(option.text);
  } catch (const SettingError& error) {
    throw UsageError(fmt::format("{}: {}", option.source, error.what()));
  }
}

// Refuses the same file for two formats.
void require_different_files(const OptionTable& table) {
  const std::array files = {&table["--json"], &table["--csv"], &table["--html"]};
  std::error_code ignored;
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const std::string& one = files[i]->text;
      const std::string& other = files[j]->text;
      if (one.empty() || other.empty()) continue;
      if (one != other && std::filesystem::weakly_canonical(one, ignored) !=
                              std::filesystem::weakly_canonical(other, ignored)) {
        continue;
      }
      throw UsageError(fmt::format("{} and {} name the same file, '{}': give each its own",
                                   files[j]->name, files[i]->name, one));
    }
  }
}

// Adds a note, with the first example, if sizes are rounded up to whole elements.
void note_rounded_sizes(bench::SessionOptions& session) {
  for (const bench::Operation op : session.ops) {
    if (op.op == Op::kBarrier) continue;
    for (const std::size_t size : session.sizes) {
      const int ranks = session.num_ranks;
      const std::size_t bytes = bench::bytes_of(op, session.dtype, ranks,
                                                bench::count_for(op, session.dtype, ranks, size));
      if (bytes == size) continue;
      session.notes.push_back(fmt::format(
          "--sizes: {} B is not a whole number of elements for every rank in {}: such sizes are "
          "rounded up, here to {} B, and measured once",
          size, name_of(op), bytes));
      return;
    }
  }
}

}  // namespace

void read_sizes(const Option& option, std::vector<std::size_t>& sizes) {
  try {
    sizes = bench::parse_sizes(option.text);
  } catch (const bench::SizeError& error) {
    throw UsageError(fmt::format("{}: {}", option.source, error.what()));
  }
}

std::vector<std::string> read_peers(const Option& option, bench::Subject subject,
                                    const std::vector<std::string>& yardsticks) {
  const auto is_in = [](const std::vector<std::string>& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  std::vector<std::string> names = bench::peer_names(subject), peers;
  for (const std::string& item : items_of(option.text)) {
    if (item == "all") {
      for (const std::string& name : names) add_once(peers, name);
    } else if (is_in(names, item)) {
      add_once(peers, item);
    } else if (!is_in(yardsticks, item)) {
      names.emplace_back("all");
      names.insert(names.end(), yardsticks.begin(), yardsticks.end());
      refuse_value(option.source, item, one_of(names, item));
    }
  }
  return peers;
}

void declare_rounds(OptionTable& table, bench::TurnOptions& options, unsigned traits) {
  table.value("--rounds", "N", "Rounds; every library has one turn in each",
              number_target(options.rounds, 1, kMaxBenchRounds), traits);
}

void declare_turn_limit(OptionTable& table, bench::TurnOptions& options, unsigned traits) {
  std::chrono::seconds& limit = options.turn_limit;
  const auto read = [&limit](const Option& option) {
    limit = std::chrono::seconds(option.number(1, kMaxBenchSeconds));
  };
  table.value("--timeout", "S", "Seconds after which a turn counts as failed",
              {.read = read, .print = [&limit] { return std::to_string(limit.count()); }}, traits);
}

void declare_json(OptionTable& table, std::string& json, unsigned traits) {
  table.value("--json", "FILE", "All results, for programs; -: standard output", text_target(json),
              traits);
}

void declare_bench_options(OptionTable& table, BenchOptions& options) {
  bench::SessionOptions& session = options.session;
  constexpr unsigned kPlanned = kSimulate | kExplain | kPredict;
  table.group("What");
  table
      .value("--nproc-per-node,--np", "N", "Ranks [one per core, at least 2]",
             number_target(session.num_ranks, 1, bench::kMaxRanks),
             kMeasure | kCalibrate | kExplain | kPredict)
      .declared->default_str("");
  table
      .value("--sizes", "LIST", "Bytes: 8,64K,1M,1G; ranges 8:1G (times 4), 8:1G:2 (times 2)",
             {.read = [&](const Option& option) { read_sizes(option, session.sizes); }},
             kMeasure | kPlanned)
      .declared->default_str(kUsualSizes);
  session.sizes = bench::parse_sizes(kUsualSizes);
  table.value("--dtype", "TYPE", "Type of the elements", named_target(session.dtype, kAllDtypes),
              kMeasure | kPlanned);
  table.value("--placement", "in|out", "One buffer or two [in place where that is usual]", {},
              kMeasure);
  table
      .value("--memory", "LIST", "Memory of Paceline's buffers: symmetric,ordinary",
             {.read = [&](const Option& option) { read_memory(option, session.memory); }}, kMeasure)
      .declared->default_str("symmetric");
  table.value("--buffers", "fresh|warm", "Whether buffers are written before every call",
              word_target(session.fresh, {{"fresh", true}, {"warm", false}}), kMeasure);
  table.value("--transport", "auto|shm|tcp|ucx", "Transport of Paceline",
              named_target(options.transport, std::array{TransportKind::kAuto, TransportKind::kShm,
                                                         TransportKind::kTcp, TransportKind::kUcx}),
              kMeasure | kPlanned);

  table.group("Libraries to compare with");
  table.value("--peer", "LIST",
              "Compare with gloo,openmpi,mpich,oneccl or all; adds memcpy and limit", {}, kMeasure);

  table.group("How");
  declare_rounds(table, session, kMeasure);
  table.value("--calls", "N", "Calls in a turn, at most",
              number_target(session.calls, 1, kMaxCalls), kMeasure | kPredict);
  table.flag("--check", "Check results", bool_target(session.check), kMeasure);
  table.flag("--no-bind", "Do not bind ranks to cores",
             {.read = [&](const Option&) { session.bind = false; }}, kMeasure);
  declare_turn_limit(table, session, kMeasure | kPredict);

  table.group("Planning");
  table.flag("--calibrate", "Measure the planner's costs and store them for later groups", {},
             kCalibrate);
  table.flag("--keep-noisy", "With --calibrate: replace even a steadier measurement",
             bool_target(options.keeps_noisy), kCalibrate);
  table.flag("--explain", "Print which algorithm is chosen, and why", bool_target(options.explains),
             kSimulate | kExplain);
  table.value(
      "--simulate", "CLUSTER", "Predict for a cluster: hosts=64,ranks=8,link=25Gbit,latency=20us",
      {.read = [&](const Option& option) { read_cluster(option, options.cluster); }}, kSimulate);
  table.flag("--predict", "Measure this group and compare with the prediction", {}, kPredict);
  table.value("--algorithm", "NAME", "Algorithm to use wherever it applies",
              named_target(session.algorithm, kAllAlgorithms), kMeasure | kPlanned);

  table.group("Output");
  declare_json(table, options.json, kMeasure | kSimulate | kPredict);
  table.value("--csv", "FILE", "The rows", text_target(options.csv), kMeasure);
  table.value("--html", "FILE", "A page with curves", text_target(options.html), kMeasure);
}

void check_bench_options(const OptionTable& table, const std::vector<std::string>& words,
                         int num_cores, BenchOptions& options) {
  options.mode = mode_of(table);
  require_effect(table, words, options.mode);
  bench::SessionOptions& session = options.session;
  session.ops = ops_for(options.mode, words);
  table.read();
  if (!table["--nproc-per-node"].given()) {
    session.num_ranks = std::clamp(num_cores, 2, bench::kMaxRanks);
  }
  session.placement = placement_of(table["--placement"], session.ops, session.notes);
  session.peers = peers_of(table["--peer"], session, session.notes);
  if (table["--transport"].given()) {
    session.variables = {{"PACELINE_TRANSPORT", table["--transport"].text}};
  }
  require_transport(options);
  require_algorithm(options, session.notes);
  require_different_files(table);
  if (options.mode == BenchMode::kMeasure && table["--sizes"].given()) note_rounded_sizes(session);
}

}  // namespace paceline::apps
