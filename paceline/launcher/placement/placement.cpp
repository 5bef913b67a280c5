#include "paceline/launcher/placement/placement.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/topology.h"
#include "paceline/launcher/placement/core_division.h"

namespace paceline::launcher {
namespace {

std::vector<int> cpus_of(const Cores& cores) {
  std::vector<int> cpus;
  for (const Core& core : cores) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

Level level_of(BindTo bind) {
  if (bind == BindTo::kPackage) return Level::kPackage;
  return bind == BindTo::kNuma ? Level::kNuma : Level::kCache;
}

class Planner {
 public:
  Planner(const Topology& topology, const PlacementRequest& request)
      : topology_(topology), request_(request), num_ranks_(request.num_local_ranks) {}

  Placement plan() {
    choose_cpus();
    choose_memory();
    choose_threads();
    judge();
    return std::move(plan_);
  }

 private:
  void choose_cpus() {
    const BindTo to = request_.binding.to;
    plan_.bound = true;
    if (to == BindTo::kMap) return follow_map();
    if (to == BindTo::kNone) return share_everything("--bind none: no rank is bound");
    if (to != BindTo::kCore) return bind_to_parts(level_of(to));
    if (num_ranks_ > topology_.num_cores()) return share_nodes();
    give_own_cores();
  }

  void give_own_cores() {
    const Cores worthwhile = worthwhile_cores(topology_.cores, num_ranks_);
    const int slower = topology_.num_cores() - static_cast<int>(worthwhile.size());
    const std::vector<Cores> shares = divide_cores(worthwhile, num_ranks_);
    for (const Cores& share : shares) add(share, static_cast<int>(share.size()));
    because("every rank has cores of its own; the hardware threads of a core stay together");
    if (slower > 0) {
      because(fmt::format(
          "{} left to the system: threads that wait for each other run at the "
          "speed of the slowest core",
          slower == 1 ? "1 slower core is" : fmt::format("{} slower cores are", slower)));
    }
    explain_sizes(shares, static_cast<int>(worthwhile.size()));
    explain_straddling(shares, worthwhile);
  }

  void explain_sizes(const std::vector<Cores>& shares, int num_cores) {
    std::size_t used = 0, fewest = shares.front().size(), most = 0;
    for (const Cores& share : shares) {
      used += share.size();
      fewest = std::min(fewest, share.size());
      most = std::max(most, share.size());
    }
    const int idle = num_cores - static_cast<int>(used);
    if (idle > 0) {
      because(
          idle == 1
              ? "1 core is idle: a rank that used it would straddle two parts of the machine"
              : fmt::format(
                    "{} cores are idle: ranks that used them would straddle parts of the machine",
                    idle));
    }
    if (most > fewest) {
      because(
          fmt::format("{} cores do not divide evenly: ranks have {} to {}; all compute with the "
                      "threads of the smallest, which sets the pace",
                      used, fewest, most));
    }
  }

  void explain_straddling(const std::vector<Cores>& shares, const Cores& all) {
    for (const Level level : {Level::kNuma, Level::kCache}) {
      const auto parts = parts_at(all, level);
      if (parts.size() < 2) continue;
      std::size_t largest = 0;
      for (const Cores& part : parts) largest = std::max(largest, part.size());
      int straddling = 0, too_large = 0;
      for (const Cores& share : shares) {
        if (parts_at(share, level).size() == 1) continue;
        ++straddling;
        if (share.size() > largest) ++too_large;
      }
      if (straddling == 0) {
        because(fmt::format("no rank straddles a {}", name_of(level)));
      } else {
        because(fmt::format(
            "{} more than one {}: {}",
            counted(straddling, "rank") + (straddling == 1 ? " uses" : " use"), name_of(level),
            too_large == straddling ? "no single one has so many cores"
                                    : "otherwise the smallest share would be too small"));
      }
    }
  }

  void bind_to_parts(Level level) {
    const std::vector<Cores> parts = parts_at(topology_.cores, level);
    const int num_parts = static_cast<int>(parts.size());
    if (num_ranks_ <= num_parts) return give_whole_parts(parts, level);
    because_of_whole(level);
    because(fmt::format("{} ranks share {}", num_ranks_, counted(num_parts, name_of(level))));
    share_parts(parts);
  }

  void because_of_whole(Level level) {
    because(fmt::format("--bind {}: a rank may use the whole {} it is put into",
                        name_of(request_.binding.to), name_of(level)));
  }

  void give_whole_parts(const std::vector<Cores>& parts, Level level) {
    const auto shares = without_straddling(whole_parts(parts, num_ranks_), level);
    bool several = false;
    for (const Cores& share : shares) {
      add(share, static_cast<int>(share.size()));
      several = several || parts_at(share, level).size() > 1;
    }
    if (several) {
      because(fmt::format(
          "--bind {0}: there are more {1}s than ranks; some ranks have several whole {1}s",
          name_of(request_.binding.to), name_of(level)));
    } else {
      because_of_whole(level);
    }
    explain_sizes(shares, topology_.num_cores());
    explain_straddling(shares, topology_.cores);
  }

  // Divides the ranks among the parts; the ranks in one part share all its cores.
  void share_parts(const std::vector<Cores>& parts) {
    std::vector<int> sizes;
    for (const Cores& part : parts) sizes.push_back(static_cast<int>(part.size()));
    const std::vector<int> seats = seats_by_size(sizes, num_ranks_);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (int seat = 0; seat < seats[i]; ++seat) {
        add(parts[i], seats[i] == 1 ? sizes[i] : 0);
        fair_share_.back() = sizes[i] / seats[i];
      }
    }
  }

  void share_nodes() {
    const auto nodes = parts_at(topology_.cores, Level::kNuma);
    const std::string more = fmt::format("{} ranks are more than {}", num_ranks_,
                                         counted(topology_.num_cores(), "core"));
    if (nodes.size() < 2) return share_everything(more + ": no rank is bound");
    because(more + ": each shares a NUMA node with others");
    share_parts(nodes);
  }

  void share_everything(const std::string& reason) {
    because(reason);
    plan_.bound = false;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      add(topology_.cores, num_ranks_ == 1 ? topology_.num_cores() : 0);
      fair_share_.back() = topology_.num_cores() / num_ranks_;
    }
  }

  void follow_map() {
    const auto& map = request_.binding.map;
    check(static_cast<int>(map.size()) == num_ranks_,
          "--bind map: {} for {}: one set for each rank of this machine is needed",
          counted(static_cast<int>(map.size()), "set"), counted(num_ranks_, "rank"));
    const std::vector<int> given = topology_.cpus();
    for (const auto& cpus : map) {
      for (const int cpu : cpus) {
        check(std::binary_search(given.begin(), given.end(), cpu),
              "--bind map: cpu {} was not given to this process (it has {})", cpu,
              format_cpu_list(given));
      }
      const Topology part = restrict_topology(topology_, cpus);
      add(part.cores, part.num_cores());
    }
    because("--bind map: the sets that were given");
  }

  void choose_memory() {
    if (!plan_.bound || topology_.numa_nodes.size() < 2) return;
    for (RankPlacement& rank : plan_.ranks) {
      std::set<int> nodes;
      for (const Core& core : restrict_topology(topology_, rank.cpus).cores) {
        nodes.insert(core.numa_node);
      }
      if (nodes.size() < topology_.numa_nodes.size()) {
        rank.numa_nodes.assign(nodes.begin(), nodes.end());
      }
    }
    because("a rank's memory is on the NUMA nodes of its cores until they are full");
  }

  void choose_threads() {
    // A map is the user's own division. Without one, the smallest share sets the pace, so all ranks
    // get the same number of threads.
    if (request_.binding.to != BindTo::kMap) {
      const int fewest = *std::min_element(fair_share_.begin(), fair_share_.end());
      std::fill(fair_share_.begin(), fair_share_.end(), fewest);
    }
    bool limited = false;
    for (std::size_t i = 0; i < plan_.ranks.size(); ++i) {
      int threads = std::max(1, fair_share_[i]);
      if (topology_.quota) {
        const int most = std::max(1, static_cast<int>(topology_.quota->cpus) / num_ranks_);
        limited = limited || most < threads;
        threads = std::min(threads, most);
      }
      plan_.ranks[i].num_threads = request_.threads_per_rank.value_or(threads);
    }
    if (limited && !request_.threads_per_rank) {
      because(fmt::format("{} grants {:.3g} cpus of time: that limits the threads, not the cores",
                          topology_.quota->source, topology_.quota->cpus));
    }
  }

  void judge() {
    int threads = 0;
    for (const RankPlacement& rank : plan_.ranks) threads += rank.num_threads;
    double granted = topology_.num_cpus();
    if (topology_.quota) {
      granted = std::min(granted, std::max(1.0, std::ceil(topology_.quota->cpus)));
    }
    plan_.oversubscribed = threads > granted;
  }

  void add(const Cores& cores, int num_own_cores) {
    RankPlacement rank;
    rank.cpus = cpus_of(cores);
    rank.num_cores = num_own_cores;
    plan_.ranks.push_back(std::move(rank));
    fair_share_.push_back(static_cast<int>(cores.size()));
  }

  void because(std::string reason) { plan_.reasons.push_back(std::move(reason)); }

  const Topology& topology_;
  const PlacementRequest& request_;
  const int num_ranks_;
  Placement plan_;
  std::vector<int> fair_share_;  // number of cores on which each rank can count
};

}  // namespace

const char* name_of(BindTo bind) {
  constexpr const char* kNames[] = {"core", "cache", "numa", "socket", "none", "map"};
  return kNames[static_cast<int>(bind)];
}

Placement plan_placement(const Topology& topology, const PlacementRequest& request) {
  check(request.num_local_ranks >= 1 && !topology.cores.empty(), "placement: {} ranks on {} cores",
        request.num_local_ranks, topology.num_cores());
  return Planner(topology, request).plan();
}

int automatic_ranks(const Topology& topology) {
  // Counts the cores that a single rank would use, as far as the cpu quota allows.
  Topology worthwhile = topology;
  worthwhile.cores = worthwhile_cores(topology.cores, 1);
  return worthwhile.num_usable_cores();
}

std::string describe_placement(int rank, const RankPlacement& placement, bool bound) {
  const std::string threads = counted(placement.num_threads, "thread");
  if (!bound) return fmt::format("rank {}: not bound, {}", rank, threads);
  const std::string cores =
      placement.num_cores == 0 ? "shared" : counted(placement.num_cores, "core");
  std::string memory;
  if (!placement.numa_nodes.empty()) {
    memory = fmt::format(", NUMA node{} {}", placement.numa_nodes.size() == 1 ? "" : "s",
                         format_cpu_list(placement.numa_nodes));
  }
  return fmt::format("rank {}: cpus {} ({}){}, {}", rank, format_cpu_list(placement.cpus), cores,
                     memory, threads);
}

}  // namespace paceline::launcher
