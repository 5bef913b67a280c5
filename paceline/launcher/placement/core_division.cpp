#include "paceline/launcher/placement/core_division.h"

#include <algorithm>
#include <map>
#include <span>

namespace paceline::launcher {
namespace {

// The smallest acceptable share, as a fraction of an even share, if the division keeps ranks from
// straddling parts: avoiding remote memory is worth a fifth of the cores, avoiding another cache a
// tenth. These are estimates, not measurements.
double least_share(Level level) {
  return level == Level::kPackage || level == Level::kNuma ? 0.8 : 0.9;
}

// Cores count as one kind if each has at least this fraction of the speed of the fastest of them:
// the favoured cores of a server have a slightly higher clock.
constexpr double kSameKind = 0.8;

std::vector<Cores> split_evenly(const Cores& cores, int num_ranks) {
  std::vector<Cores> shares;
  for (int i = 0; i < num_ranks; ++i) {
    const auto begin = cores.begin() + static_cast<long>(cores.size() * i / num_ranks);
    const auto end = cores.begin() + static_cast<long>(cores.size() * (i + 1) / num_ranks);
    shares.emplace_back(begin, end);
  }
  return shares;
}

std::size_t smallest(const std::vector<Cores>& shares) {
  return std::min_element(shares.begin(), shares.end(),
                          [](const Cores& a, const Cores& b) { return a.size() < b.size(); })
      ->size();
}

std::vector<Cores> divide(const Cores& cores, int num_ranks, std::span<const Level> levels);

std::vector<Cores> within_parts(const std::vector<Cores>& parts, int num_ranks,
                                std::span<const Level> inner_levels) {
  std::vector<int> sizes;
  for (const Cores& part : parts) sizes.push_back(static_cast<int>(part.size()));
  const std::vector<int> seats = seats_by_size(sizes, num_ranks);
  std::vector<Cores> shares;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (seats[i] == 0) continue;
    for (Cores& share : divide(parts[i], seats[i], inner_levels))
      shares.push_back(std::move(share));
  }
  return shares;
}

std::vector<Cores> divide(const Cores& cores, int num_ranks, std::span<const Level> levels) {
  if (num_ranks == 1) return {cores};
  if (levels.empty()) return split_evenly(cores, num_ranks);
  const auto inner_levels = levels.subspan(1);
  const std::vector<Cores> parts = parts_at(cores, levels.front());
  const auto even = cores.size() / static_cast<std::size_t>(num_ranks);
  const double least = least_share(levels.front()) * static_cast<double>(even);
  auto enough = [&](const std::vector<Cores>& shares) {
    return static_cast<double>(smallest(shares)) >= least;
  };
  if (parts.size() > 1) {
    auto shares = within_parts(parts, num_ranks, inner_levels);
    if (enough(shares)) return shares;
    if (static_cast<std::size_t>(num_ranks) < parts.size()) {
      shares = whole_parts(parts, num_ranks);
      if (enough(shares)) return shares;
    }
  }
  return divide(cores, num_ranks, inner_levels);
}

// Groups the cores by kind, the fastest kind first.
std::vector<Cores> kinds_of(const Cores& cores) {
  std::vector<double> speeds;
  for (const Core& core : cores) speeds.push_back(core.speed);
  std::sort(speeds.rbegin(), speeds.rend());
  std::vector<Cores> kinds;
  while (!speeds.empty()) {
    const double least = speeds.front() * kSameKind;
    Cores kind;
    for (const Core& core : cores) {
      if (core.speed <= speeds.front() && core.speed >= least) kind.push_back(core);
    }
    std::erase_if(speeds, [&](double speed) { return speed >= least; });
    kinds.push_back(std::move(kind));
  }
  return kinds;
}

// Gives every rank a share of the cores of each kind. Returns an empty list if a kind has fewer
// cores than there are ranks, because the ranks without a core of that kind would be slower.
std::vector<Cores> divide_by_kind(const Cores& cores, int num_ranks,
                                  std::span<const Level> levels) {
  std::vector<Cores> shares(num_ranks);
  for (const Cores& kind : kinds_of(cores)) {
    if (kind.size() < static_cast<std::size_t>(num_ranks)) return {};
    const auto of_kind = divide(kind, num_ranks, levels);
    for (int i = 0; i < num_ranks; ++i) {
      shares[i].insert(shares[i].end(), of_kind[i].begin(), of_kind[i].end());
    }
  }
  return shares;
}

// At each level, reduces a share that lies in several parts to its cores in one of these parts: the
// part that holds most of the share, if that part holds at least `needed` cores of the share.
Cores narrowed(Cores share, std::size_t needed, std::span<const Level> levels) {
  for (const Level level : levels) {
    auto parts = parts_at(share, level);
    const auto largest =
        std::max_element(parts.begin(), parts.end(),
                         [](const Cores& a, const Cores& b) { return a.size() < b.size(); });
    if (largest->size() >= needed) share = std::move(*largest);
  }
  return share;
}

}  // namespace

const char* name_of(Level level) {
  switch (level) {
    case Level::kPackage:
      return "package";
    case Level::kNuma:
      return "NUMA node";
    case Level::kCache:
      return "cache";
    case Level::kCluster:
      return "cluster";
  }
  return "?";
}

int part_of(const Core& core, Level level) {
  switch (level) {
    case Level::kPackage:
      return core.package;
    case Level::kNuma:
      return core.numa_node;
    case Level::kCache:
      return core.cache;
    case Level::kCluster:
      return core.cluster;
  }
  return 0;
}

std::vector<Cores> parts_at(const Cores& cores, Level level) {
  std::vector<Cores> parts;
  std::map<int, std::size_t> index;
  for (const Core& core : cores) {
    const auto [entry, is_new] = index.emplace(part_of(core, level), parts.size());
    if (is_new) parts.emplace_back();
    parts[entry->second].push_back(core);
  }
  return parts;
}

std::vector<Cores> divide_cores(const Cores& cores, int num_ranks) {
  // A node may contain several caches, or a cache several nodes, so the coarser level is handled
  // first.
  std::vector<Level> levels(kLevels.begin(), kLevels.end());
  std::stable_sort(levels.begin(), levels.end(), [&](Level a, Level b) {
    return parts_at(cores, a).size() < parts_at(cores, b).size();
  });
  std::vector<Cores> shares;
  if (kinds_of(cores).size() > 1) shares = divide_by_kind(cores, num_ranks, levels);
  if (shares.empty()) shares = divide(cores, num_ranks, levels);
  const auto fewest = smallest(shares);
  for (Cores& share : shares) share = narrowed(std::move(share), fewest, levels);
  return shares;
}

std::vector<int> seats_by_size(const std::vector<int>& sizes, int num_ranks) {
  std::vector<int> seats(sizes.size(), 0);
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < sizes.size(); ++i) {
      // sizes[i] / (seats[i] + 1) > sizes[best] / (seats[best] + 1), in whole numbers
      if (sizes[i] * (seats[best] + 1) > sizes[best] * (seats[i] + 1)) best = i;
    }
    ++seats[best];
  }
  return seats;
}

std::vector<Cores> whole_parts(const std::vector<Cores>& parts, int num_ranks) {
  std::size_t total = 0;
  for (const Cores& part : parts) total += part.size();
  std::vector<Cores> shares(num_ranks);
  std::size_t next = 0, given = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::size_t still_needed = static_cast<std::size_t>(num_ranks - rank - 1);
    const auto target = static_cast<long>(total * (rank + 1) / num_ranks);
    auto distance = [&](std::size_t size) { return std::labs(static_cast<long>(size) - target); };
    Cores& share = shares[rank];
    while (next + still_needed < parts.size() &&
           (share.empty() || rank == num_ranks - 1 ||
            distance(given + parts[next].size()) <= distance(given))) {
      given += parts[next].size();
      share.insert(share.end(), parts[next].begin(), parts[next].end());
      ++next;
    }
  }
  return shares;
}

std::vector<Cores> without_straddling(std::vector<Cores> shares, Level level) {
  const auto last = std::find(kLevels.begin(), kLevels.end(), level);
  const auto fewest = smallest(shares);
  for (Cores& share : shares) {
    share = narrowed(std::move(share), fewest, {kLevels.begin(), last + 1});
  }
  return shares;
}

Cores worthwhile_cores(const Cores& cores, int num_ranks) {
  const auto kinds = kinds_of(cores);
  Cores best, so_far;
  double best_pace = 0;
  for (const Cores& kind : kinds) {
    so_far.insert(so_far.end(), kind.begin(), kind.end());
    const double slowest =
        std::min_element(kind.begin(), kind.end(), [](const Core& a, const Core& b) {
          return a.speed < b.speed;
        })->speed;
    const std::size_t cores_each = so_far.size() / static_cast<std::size_t>(num_ranks);
    const double pace = static_cast<double>(cores_each) * slowest;
    if (pace > best_pace) {
      best_pace = pace;
      best = so_far;
    }
  }
  if (best.empty() || best.size() == cores.size()) return cores;  // in hardware order
  return best;
}

}  // namespace paceline::launcher
