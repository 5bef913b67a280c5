#include "paceline/engine/collectives/selection/planner.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "paceline/engine/collectives/algorithms/message_algorithms.h"
#include "paceline/engine/collectives/algorithms/schedule_builder.h"
#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/collectives/selection/calibration.h"
#include "paceline/engine/collectives/selection/cost_model.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"

namespace paceline::effort {

namespace {

// The approximate size, in bytes, of a piece that fits into the memory that a host's ranks share.
constexpr double kHierarchyPieceBytes = 1.5 * (1 << 20);

// How many bytes leave a host if each of its ranks sends the same amount to all others.
double outward(const CallSizes& s, double sent_by_a_rank) {
  if (s.p <= 1) return 0;
  return s.m * sent_by_a_rank * (s.p - s.m) / (s.p - 1);
}
// How many bytes a rank's processor moves through sockets inside a host, the arriving bytes
// included.
double inward(const CallSizes& s, double sent_by_a_rank) {
  if (s.p <= 1) return 0;
  return 2 * sent_by_a_rank * (s.m - 1) / (s.p - 1);
}

// The levels of a tree that lie inside a host. With one host, these are all levels, including the
// incomplete last one if the number of ranks is not a power of two.
double inner_levels(const CallSizes& s) {
  if (s.hosts == 1) return s.levels;
  if (!s.is_in_blocks) return 0;
  return std::min<double>(s.levels, std::bit_width(static_cast<unsigned>(s.m)) - 1);
}

}  // namespace

Effort direct(Op op, const CallSizes& s, double /*chunk*/) {
  Effort work;
  double sent = 0;
  work.rounds = 1;
  work.messages = s.p - 1;
  if (op == Op::kAllReduce) {
    work.rounds = 2;
    work.messages = 2 * (s.p - 1);
    sent = 2 * s.n * (s.p - 1) / s.p;
    work.reduce_bytes = s.n;
  } else if (op == Op::kReduce) {
    work.rounds = 2;
    work.messages = s.p;
    sent = s.n * (s.p - 1) / s.p;
    work.reduce_bytes = s.n;
  } else if (has_root(op)) {  // the effort of the root, which is the busiest rank
    work.rounds += s.levels;
    work.network_bytes = s.n * (s.p - s.m);
    work.socket_bytes = s.n * (s.m - 1);
    return work;
  } else if (gives_blocks(op) || gets_blocks(op)) {
    sent = s.n * (s.p - 1);
    if (reduces(op)) work.reduce_bytes = s.n * s.p;
  } else {
    work.rounds = work.messages = s.levels;
    return work;
  }
  work.network_bytes = outward(s, sent);
  work.socket_bytes = inward(s, sent);
  if (op == Op::kReduce) work.network_bytes += s.n / s.p * (s.p - s.m);
  return work;
}

Effort one_shot(Op /*op*/, const CallSizes& s, double /*chunk*/) {
  Effort work;
  work.rounds = 1;
  work.messages = s.p - 1;
  work.network_bytes = outward(s, s.n * (s.p - 1));
  work.socket_bytes = inward(s, s.n * (s.p - 1));
  work.reduce_bytes = s.n * s.p;
  return work;
}

Effort tree(Op op, const CallSizes& s, double /*chunk*/) {
  const double inner = inner_levels(s);
  Effort work;
  work.rounds = work.messages = s.levels;
  if (op == Op::kBroadcast) {
    work.rounds += s.levels;
    work.network_bytes = s.n * (s.levels - inner);
    work.socket_bytes = s.n * inner;
  } else {
    const double wide = 1 + (s.levels - 1) * s.wide;  // a contribution, then partial sums
    work.rounds += s.levels;
    work.network_bytes = s.levels > 0 ? s.n * wide * (s.levels - inner) / s.levels : 0;
    work.socket_bytes = s.levels > 0 ? s.n * wide * inner / s.levels : 0;
    work.reduce_bytes = s.n * (s.levels + 1) * s.wide;
  }
  return work;
}

Effort doubling(Op op, const CallSizes& s, double /*chunk*/) {
  Effort work;
  work.rounds = work.messages = s.levels;
  if (op != Op::kAllReduce) {
    const double sent = s.n * (s.p - 1);
    double crossing = 0;
    for (double distance = 1; distance < s.p; distance *= 2) {
      const double blocks = std::min(distance, s.p - distance);
      const double ranks = s.is_in_blocks ? std::min(distance, s.m) : s.m;
      crossing += s.n * blocks * ranks;
    }
    work.network_bytes = s.hosts > 1 ? crossing : 0;
    work.socket_bytes = 2 * std::max(0.0, sent - work.network_bytes / s.m);
    return work;
  }
  const double inner = inner_levels(s);
  // The first level sends contributions, not partial sums.
  const double first = s.levels > 0 ? 1 : 0;
  const double in_socket = inner > 0 ? first + (inner - 1) * s.wide : 0;
  const double all = first + std::max(0.0, s.levels - 1) * s.wide;
  work.socket_bytes = 2 * s.n * in_socket;
  work.network_bytes = s.m * s.n * (all - in_socket);
  work.reduce_bytes = 2 * s.n * s.wide * s.levels;
  if (s.rest > 0) {  // in the last level, few ranks send to many
    const double more = std::max(0.0, s.owners / s.rest - 1);
    work.messages += more;
    work.network_bytes += s.hosts > 1 ? more * s.n * s.wide * std::min(s.m, s.rest) : 0;
    work.socket_bytes += s.hosts > 1 ? 0 : more * s.n * s.wide;
  }
  return work;
}

Effort halving(Op op, const CallSizes& s, double /*chunk*/) {
  const double whole = op == Op::kAllReduce ? s.n : s.n * s.p;
  const double inner = std::min(inner_levels(s), s.full);
  Effort work;
  work.rounds = work.messages = op == Op::kAllReduce ? 2 * s.full : s.full + 1;
  double half = whole;
  for (double level = 0; level < s.full; ++level) {
    half /= 2;
    const double sent = half * (level == 0 ? 1 : s.wide) + (op == Op::kAllReduce ? half : 0);
    (level < inner ? work.socket_bytes : work.network_bytes) += (level < inner ? 2 : s.m) * sent;
    work.reduce_bytes += 2 * half * s.wide;
  }
  if (op != Op::kAllReduce) (s.hosts > 1 ? work.network_bytes : work.socket_bytes) += s.m * s.n;
  if (s.rest > 0) {
    const double given = whole * s.wide;
    const double fetched = op == Op::kAllReduce ? whole * s.rest / s.owners : 0;
    work.rounds += 1 + s.levels - s.full;
    work.messages += s.owners;
    const double more = std::max(given, fetched);
    (s.hosts > 1 ? work.network_bytes : work.socket_bytes) += more * std::min(s.m, s.rest);
    work.reduce_bytes += 2 * whole / s.owners * s.wide;
  }
  return work;
}

Effort ring(Op op, const CallSizes& s, double /*chunk*/) {
  const double chunk = op == Op::kAllReduce ? s.n / s.p : s.n;
  const double sent = chunk * (s.p - 1);
  Effort work;
  work.rounds = work.messages = s.p - 1;
  double bytes = sent;
  if (reduces(op)) {
    bytes = sent * s.wide + (op == Op::kAllReduce ? sent : 0);
    work.reduce_bytes = 2 * sent * s.wide;
    if (op == Op::kAllReduce) work.rounds = work.messages = 2 * (s.p - 1);
  }
  if (s.hosts > 1) {
    work.network_bytes = s.is_in_blocks ? bytes : s.m * bytes;
  } else {
    work.socket_bytes = 2 * bytes;
  }
  return work;
}

Effort bruck(Op /*op*/, const CallSizes& s, double /*chunk*/) {
  Effort work;
  work.rounds = work.messages = s.levels;
  const double sent = s.n * s.p / 2 * s.levels;
  work.network_bytes = outward(s, sent);
  work.socket_bytes = inward(s, sent);
  work.copy_bytes = s.n * s.p * (2 + s.levels);
  return work;
}

Effort chain(Op /*op*/, const CallSizes& s, double chunk) {
  Effort work;
  const double chunks = std::ceil(s.n / chunk);
  work.rounds = s.p - 1 + s.levels;
  // Messages pass through the chain one after the other; the work at both ends of a message
  // overlaps with that of the next message.
  work.messages = chunks + s.p - 2;
  const double bytes = s.n + (s.p - 2) * chunk;
  if (s.hosts > 1) {
    work.network_bytes = s.is_in_blocks ? bytes : s.m * bytes;
  } else {
    work.socket_bytes = (s.p > 2 ? 2 : 1) * bytes;
  }
  return work;
}

Effort hierarchy(Op op, const CallSizes& s, double /*chunk*/) {
  const double others = s.hosts - 1;
  const double levels = levels_of(static_cast<int>(s.hosts));
  // A subtree of one rank is not a partial sum.
  const double sums = s.partials * (s.m > 1 ? s.wide : 1);
  Effort work;
  double pieces = 1;
  switch (op) {
    case Op::kAllReduce:
      pieces = std::ceil(s.n / kHierarchyPieceBytes);
      work.rounds = s.hosts <= 4 ? 2 : 2 * levels;
      work.messages = s.hosts <= 4 ? others * (s.partials + 1) : 2 * levels;
      work.network_bytes = s.n * others / s.hosts * (sums + 1);
      work.reduce_bytes = s.n + s.n / s.m * s.wide;
      work.copy_bytes = 2 * s.n;
      work.meetings = 2;
      break;
    case Op::kReduce:
      pieces = std::ceil(s.n / kHierarchyPieceBytes);
      work.rounds = 1 + levels;
      work.messages = others * s.partials;
      work.network_bytes = s.n * others * sums;
      work.reduce_bytes = s.n + s.n / s.m * s.wide * others;
      work.copy_bytes = 2 * s.n;
      work.meetings = 2;
      break;
    case Op::kBroadcast:
      pieces = std::ceil(s.n / kHierarchyPieceBytes);
      work.rounds = 2 * levels;
      work.messages = levels;
      work.network_bytes = s.n * levels;
      work.copy_bytes = 2 * s.n;
      work.meetings = 2;
      break;
    case Op::kAllGather:
    case Op::kAllGatherV:
      pieces = std::ceil(s.n * s.p / 2 / kHierarchyPieceBytes);
      work.rounds = 1;
      work.messages = others;
      work.network_bytes = s.m * s.n * others;
      work.copy_bytes = s.n * (s.p + 1);
      work.meetings = 1;
      break;
    default:
      pieces = std::ceil(s.n * s.p / 2 / kHierarchyPieceBytes);
      work.rounds = 1;
      work.messages = others * s.partials;
      work.network_bytes = (s.p - s.m) * s.n * sums;
      work.reduce_bytes = (s.p - s.m) * s.n + s.m * s.n + others * s.n * sums;
      work.copy_bytes = s.n * s.p;
      work.meetings = 1;
      break;
  }
  pieces = std::max(1.0, pieces);
  work.rounds *= pieces;
  work.messages *= pieces;
  work.meetings *= pieces;
  return work;
}

}  // namespace paceline::effort

namespace paceline {

namespace {

constexpr std::size_t kMinChunkBytes = 16 << 10;
constexpr std::size_t kMaxChunkBytes = 1 << 20;

std::string text_of(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} µs", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

}  // namespace

Planner::Planner(Hosts hosts, const PlanningOptions& options, bool shares_memory)
    : hosts_(std::move(hosts)),
      options_(options),
      costs_(options.costs ? *options.costs : CostModel()),
      shares_memory_(shares_memory),
      world_(hosts_.world_size()) {
  for (const auto& members : hosts_.members) {
    most_per_host_ = std::max(most_per_host_, static_cast<double>(members.size()));
    is_in_blocks_ &= members.back() - members.front() + 1 == static_cast<int>(members.size());
  }
  for (const auto& trees : subtrees_by_host(hosts_)) {
    partials_ = std::max(partials_, static_cast<double>(trees.size()));
  }
}

double Planner::seconds(const Effort& work) const {
  const LinkCost& link = hosts_.size() > 1 ? costs_.network : costs_.sockets;
  const double wires = work.network_bytes / costs_.network.bytes_per_s +
                       work.socket_bytes / costs_.sockets.bytes_per_s;
  return work.rounds * link.latency_s + 2 * work.messages * link.message_s + wires +
         work.reduce_bytes / costs_.reduce_bytes_per_s + work.copy_bytes / costs_.copy_bytes_per_s +
         work.meetings * costs_.meet_s;
}

CallSizes Planner::sizes_of(const PlanRequest& request) const {
  const auto element = static_cast<double>(size_of(request.dtype));
  CallSizes s{};
  s.p = world_;
  s.hosts = static_cast<double>(hosts_.size());
  s.m = most_per_host_;
  s.levels = levels_of(world_);
  s.owners = floor_power_of_two(world_);
  s.full = levels_of(static_cast<int>(s.owners));
  s.rest = s.p - s.owners;
  s.wide = static_cast<double>(partial_size_of(request.dtype)) / element;
  s.n = static_cast<double>(request.count) * element;
  if (has_counts(request.op)) s.n /= has_count_matrix(request.op) ? s.p * s.p : s.p;
  s.partials = partials_;
  s.is_in_blocks = is_in_blocks_;
  return s;
}

Candidate Planner::weigh(Algorithm algorithm, const PlanRequest& request) const {
  const CallSizes sizes = sizes_of(request);
  Candidate candidate{.algorithm = algorithm};
  if (algorithm != Algorithm::kChain) {
    candidate.work = effort_of(algorithm, request.op, sizes);
    candidate.seconds = seconds(candidate.work);
    return candidate;
  }
  // Finds the fastest chunk among powers of two: short enough that all ranks of the chain work at
  // the same time, long enough that the overhead of messages is small.
  candidate.seconds = -1;
  Candidate best = candidate;
  for (std::size_t bytes = kMinChunkBytes; bytes <= kMaxChunkBytes; bytes *= 2) {
    candidate.chunk = bytes / size_of(request.dtype);
    candidate.work = effort_of(algorithm, request.op, sizes, static_cast<double>(bytes));
    candidate.seconds = seconds(candidate.work);
    if (best.seconds < 0 || candidate.seconds < best.seconds) best = candidate;
  }
  return best;
}

std::vector<Candidate> Planner::candidates(const PlanRequest& request) const {
  std::vector<Candidate> all;
  for (const Algorithm algorithm : kAllAlgorithms) {
    if (!serves(algorithm, request.op)) continue;
    if (algorithm == Algorithm::kHierarchy && (!shares_memory_ || hosts_.size() < 2)) {
      continue;
    }
    const bool is_asked_for = options_.allows_any_order || options_.algorithm == algorithm;
    if (!keeps_order(algorithm, request.op) && !is_asked_for) continue;
    all.push_back(weigh(algorithm, request));
  }
  std::stable_sort(all.begin(), all.end(), [&](const Candidate& a, const Candidate& b) {
    const bool is_a = options_.algorithm == a.algorithm;
    const bool is_b = options_.algorithm == b.algorithm;
    return is_a != is_b ? is_a : a.seconds < b.seconds;
  });
  return all;
}

std::string Planner::explain(const PlanRequest& request) const {
  const auto all = candidates(request);
  std::string text =
      fmt::format("{} among {} on {}; costs: {}:\n", describe(request), counted(world_, "rank"),
                  counted(hosts_.size(), "host"), provenance(costs_));
  for (const Candidate& candidate : all) {
    const bool is_chosen = &candidate == &all.front();
    text +=
        fmt::format("{} {:<10}{:>10}  {}{}\n", is_chosen ? '*' : ' ', name_of(candidate.algorithm),
                    text_of(candidate.seconds), describe(candidate.work),
                    is_chosen && options_.algorithm == candidate.algorithm ? "; asked for" : "");
  }
  return text;
}

namespace {

// Whether `count` is one block of the larger buffer (collective.h).
bool counts_blocks(Op op) {
  return traits_of(op).input == Extent::kBlocks || traits_of(op).output == Extent::kBlocks;
}

}  // namespace

std::string describe(const PlanRequest& request) {
  return fmt::format("{} of {} x {} ({}{})", name_of(request.op), request.count,
                     name_of(request.dtype), size_text(request.count * size_of(request.dtype)),
                     counts_blocks(request.op) ? " a block" : "");
}

std::string describe(const Effort& work) {
  std::string text = fmt::format("{:.0f} latenc{}, {}", work.rounds, work.rounds == 1 ? "y" : "ies",
                                 counted(std::llround(work.messages), "message"));
  const auto add = [&](double bytes, const char* what) {
    if (bytes > 0) text += fmt::format(", {} {}", size_text(static_cast<std::size_t>(bytes)), what);
  };
  add(work.network_bytes, "through a host's network");
  add(work.socket_bytes, "through sockets");
  add(work.reduce_bytes, "read by reduces");
  add(work.copy_bytes, "copied");
  if (work.meetings > 0) text += ", " + counted(std::llround(work.meetings), "meeting");
  return text;
}

}  // namespace paceline
