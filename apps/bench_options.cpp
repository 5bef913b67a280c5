#include "apps/bench_options.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/bench/catalog.h"
#include "paceline/bench/pattern.h"
#include "paceline/bench/size_list.h"

#include "apps/bench_modes.h"
#include "apps/option_value.h"
#include "apps/usage_error.h"

namespace paceline::apps {
namespace {

using bench::MemoryKind;
using bench::Placement;

constexpr const char* kUsualSizes = "4K:64M";
constexpr long kMaxRounds = 1000;
constexpr long kMaxCalls = 10000;
constexpr long kMaxSecondsOfBench = 86400;

long number_or(const char* flag, const std::string& text, long fallback, long max) {
  return text.empty() ? fallback : whole_number(flag, text, 1, max);
}

std::vector<std::string> items_of(const std::string& text) {
  std::vector<std::string> items;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) items.push_back(item);
  if (text.ends_with(',')) items.emplace_back();
  return items;
}

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const bench::Operation op : bench::measurable_ops()) names.emplace_back(name_of(op));
  names.emplace_back("all");
  return names;
}

template <class T>
void add_once(std::vector<T>& list, const T& value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

// `all` is what "all" stands for.
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

// What is only thought about is all_reduce where nothing is said.
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
    throw UsageError(fmt::format("operation: {} is measured only, not planned", name_of(op)));
  }
  return ops;
}

std::vector<std::size_t> sizes_of(const std::string& text) {
  try {
    return bench::parse_sizes(text.empty() ? kUsualSizes : text);
  } catch (const bench::SizeError& error) {
    throw UsageError(fmt::format("--sizes: {}", error.what()));
  }
}

Dtype dtype_of_text(const std::string& text) {
  if (text.empty()) return Dtype::kFloat32;
  const auto dtype = bench::dtype_named(text);
  if (dtype) return *dtype;
  std::vector<std::string> names;
  for (const Dtype known : kAllDtypes) names.emplace_back(name_of(known));
  refuse_value("--dtype", text, one_of(names, text));
}

// Where it can be; `notes` say where not. Nowhere is an error.
std::optional<Placement> placement_of(const std::string& text,
                                      const std::vector<bench::Operation>& ops,
                                      std::vector<std::string>& notes) {
  if (text.empty()) return {};
  if (text != "in" && text != "out") refuse_value("--placement", text, "in or out");
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
  notes.push_back(fmt::format("--placement {}: {}, and so measured", text, what));
  return placement;
}

std::vector<MemoryKind> memory_of(const std::string& text) {
  if (text.empty()) return {MemoryKind::kSymmetric};
  std::vector<MemoryKind> kinds;
  for (const std::string& item : items_of(text)) {
    if (item != "symmetric" && item != "ordinary") {
      refuse_value("--memory", item, "symmetric, ordinary or both with a comma");
    }
    add_once(kinds, item == "symmetric" ? MemoryKind::kSymmetric : MemoryKind::kOrdinary);
  }
  return kinds;
}

constexpr const char* kLimitOfLimit =
    "limit: float32 and 2 ranks only, of all_reduce, reduce_scatter, all_gather, broadcast and "
    "all_to_all in their usual form";

// What is written by hand, whose program says what it can.
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

// With any peer come the yardsticks. Requires: what is measured has been settled.
std::vector<std::string> peers_of(const std::string& text, const bench::SessionOptions& session,
                                  std::vector<std::string>& notes) {
  if (text.empty()) return {};
  std::vector<std::string> peers;
  const bool has_limit = limit_applies(session);
  bool asks_limit = false;
  for (const std::string& item : items_of(text)) {
    asks_limit |= item == "all" || item == "limit";
    if (item == "limit") continue;
    if (item == "all") {
      for (const std::string& name : bench::peer_names()) add_once(peers, name);
      continue;
    }
    if (item == "paceline" || bench::find_entry(item) == nullptr) {
      std::vector<std::string> names = bench::peer_names();
      names.insert(names.end(), {"all", "memcpy", "limit"});
      refuse_value("--peer", item, one_of(names, item));
    }
    add_once(peers, item);
  }
  if (has_limit) add_once<std::string>(peers, "limit");
  if (asks_limit && !has_limit) notes.emplace_back(kLimitOfLimit);
  add_once<std::string>(peers, "memcpy");
  return peers;
}

bool is_fresh(const std::string& text) {
  if (!text.empty() && text != "fresh" && text != "warm")
    refuse_value("--buffers", text, "fresh or warm");
  return text != "warm";
}

TransportKind transport_of(const std::string& text) {
  if (text.empty() || text == "auto") return TransportKind::kAuto;
  if (text == "shm") return TransportKind::kShm;
  if (text == "tcp") return TransportKind::kTcp;
  if (text == "ucx") return TransportKind::kUcx;
  refuse_value("--transport", text, "auto, shm, tcp or ucx");
}

launch::Environment variables_of(const std::string& transport) {
  if (transport.empty()) return {};
  return {{"PACELINE_TRANSPORT", transport}};
}

std::optional<Algorithm> algorithm_of(const std::string& text) {
  if (text.empty()) return {};
  const auto algorithm = algorithm_named(text);
  if (algorithm) return algorithm;
  std::vector<std::string> names;
  for (const Algorithm known : kAllAlgorithms) names.emplace_back(name_of(known));
  refuse_value("--algorithm", text, one_of(names, text));
}

bench::Cluster cluster_of(const std::string& text) {
  try {
    return bench::parse_cluster(text);
  } catch (const bench::ClusterError& error) {
    throw UsageError(fmt::format("--simulate: {}", error.what()));
  }
}

}  // namespace

void declare_bench_options(CLI::App& app, BenchTexts& texts) {
  auto value = [&](const std::string& name, std::string& target, const char* type,
                   const char* shown_default, const char* text, const char* group) {
    auto* option = app.add_option(name, target, text)->type_name(type)->group(group);
    if (*shown_default != '\0') option->default_str(shown_default);
  };
  value("--nproc-per-node,--np", texts.nproc_per_node, "N", "", "Ranks [one per core, at least 2]",
        "What");
  value("--sizes", texts.sizes, "LIST", kUsualSizes,
        "Bytes: 8,64K,1M,1G; ranges 8:1G (times 4), 8:1G:2 (times 2)", "What");
  value("--dtype", texts.dtype, "TYPE", "float32", "Type of the elements", "What");
  value("--placement", texts.placement, "in|out", "",
        "One buffer or two [in place where that is usual]", "What");
  value("--memory", texts.memory, "LIST", "symmetric",
        "Where Paceline's buffers lie: symmetric,ordinary", "What");
  value("--buffers", texts.buffers, "fresh|warm", "fresh", "Written before every call, or not",
        "What");
  value("--transport", texts.transport, "auto|shm|tcp|ucx", "auto", "Paceline's", "What");

  value("--peer", texts.peer, "LIST", "",
        "Measure beside: gloo,openmpi,mpich,oneccl or all; memcpy and limit come with them",
        "Against whom");

  value("--rounds", texts.rounds, "N", "5", "Rounds; in each everybody has one turn", "How");
  value("--calls", texts.calls, "N", "200", "Calls in a turn, at most", "How");
  app.add_flag("--check", texts.check, "Check results")->group("How");
  app.add_flag("--no-bind", texts.no_bind, "Do not bind ranks to cores")->group("How");
  value("--timeout", texts.timeout, "S", "120", "Seconds after which a turn has failed", "How");

  app.add_flag("--calibrate", texts.calibrate,
               "Measure what the planner goes by and keep it for later groups")
      ->group("Planning");
  app.add_flag("--keep-noisy", texts.keep_noisy,
               "With --calibrate: also where that replaces a steadier measurement")
      ->group("Planning");
  app.add_flag("--explain", texts.explain, "Print which algorithm is taken, and why")
      ->group("Planning");
  value("--simulate", texts.simulate, "CLUSTER", "",
        "Predict for a cluster: hosts=64,ranks=8,link=25Gbit,latency=20us", "Planning");
  app.add_flag("--predict", texts.predict, "Measure this group, with the prediction beside it")
      ->group("Planning");
  value("--algorithm", texts.algorithm, "NAME", "", "Take it wherever it serves", "Planning");

  value("--json", texts.json, "FILE", "", "Everything, for programs; - to standard output",
        "Output");
  value("--csv", texts.csv, "FILE", "", "The rows", "Output");
  value("--html", texts.html, "FILE", "", "A page with curves", "Output");
}

// One file cannot hold two kinds of text.
void require_different_files(const BenchTexts& texts) {
  const std::vector<std::pair<const char*, std::string>> files = {
      {"--json", texts.json}, {"--csv", texts.csv}, {"--html", texts.html}};
  std::error_code ignored;
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const std::string& one = files[i].second;
      const std::string& other = files[j].second;
      if (one.empty() || other.empty()) continue;
      if (one != other && std::filesystem::weakly_canonical(one, ignored) !=
                              std::filesystem::weakly_canonical(other, ignored)) {
        continue;
      }
      throw UsageError(fmt::format("{} and {} name the same file, '{}': give each its own",
                                   files[j].first, files[i].first, one));
    }
  }
}

// Once, with the first example: what is measured has whole elements.
void say_what_is_rounded(const BenchTexts& texts, bench::SessionOptions& session) {
  if (texts.sizes.empty()) return;
  for (const bench::Operation op : session.ops) {
    if (op.op == Op::kBarrier) continue;
    for (const std::size_t size : session.sizes) {
      const int ranks = session.num_ranks;
      const std::size_t bytes = bench::bytes_of(op, session.dtype, ranks,
                                                bench::count_for(op, session.dtype, ranks, size));
      if (bytes == size) continue;
      session.notes.push_back(fmt::format(
          "--sizes: {} B is no whole number of elements for every rank in {}: such sizes are "
          "rounded up, here to {} B, and measured once",
          size, name_of(op), bytes));
      return;
    }
  }
}

BenchOptions check_bench_options(const BenchTexts& texts, int num_cores) {
  BenchOptions options;
  options.mode = mode_of(texts);
  require_meaning(texts, options.mode);
  bench::SessionOptions& session = options.session;
  session.ops = ops_for(options.mode, texts.ops);
  session.num_ranks =
      static_cast<int>(number_or("--nproc-per-node", texts.nproc_per_node,
                                 std::clamp(num_cores, 2, bench::kMaxRanks), bench::kMaxRanks));
  session.sizes = sizes_of(texts.sizes);
  session.dtype = dtype_of_text(texts.dtype);
  session.placement = placement_of(texts.placement, session.ops, session.notes);
  session.memory = memory_of(texts.memory);
  session.fresh = is_fresh(texts.buffers);
  session.check = texts.check;
  session.rounds =
      static_cast<int>(number_or("--rounds", texts.rounds, session.rounds, kMaxRounds));
  session.calls = static_cast<int>(number_or("--calls", texts.calls, session.calls, kMaxCalls));
  session.turn_limit =
      std::chrono::seconds(number_or("--timeout", texts.timeout, 120, kMaxSecondsOfBench));
  session.peers = peers_of(texts.peer, session, session.notes);
  session.variables = variables_of(texts.transport);
  session.bind = !texts.no_bind;
  if (options.mode == BenchMode::kSimulate) options.cluster = cluster_of(texts.simulate);
  options.explains = texts.explain;
  options.keeps_noisy = texts.keep_noisy;
  options.transport = transport_of(texts.transport);
  session.algorithm = algorithm_of(texts.algorithm);
  require_transport(options);
  require_algorithm(options, session.notes);
  require_different_files(texts);
  if (options.mode == BenchMode::kMeasure) say_what_is_rounded(texts, session);
  options.json = texts.json;
  options.csv = texts.csv;
  options.html = texts.html;
  return options;
}

}  // namespace paceline::apps
