// The hierarchy: shared memory inside a host, messages between hosts.
//
// Terms. A buffer is divided into *lanes*, one for each rank of the smallest host; the rank at
// position l of every host *carries* lane l: it alone exchanges that lane with other hosts. A
// *subtree* is a part of the fixed tree of ranks (kernels/reduce.h) that lies on one host, as large
// as possible.
//
// all_reduce: the ranks copy their input into scratch, which the ranks of their host can read; the
// carrier of a lane adds up its host's contributions, exchanges the sums with the carriers of the
// lane on the other hosts, and leaves the result in its scratch, from which the host's ranks fetch
// the result. The ranks of a host meet between these steps.
//
// The order of the sum is by ranks, not by hosts, so a host adds up each of its subtrees
// separately. If all hosts have the same power of two of consecutive ranks, each makes one partial
// sum; a host with 3 consecutive ranks makes two. If ranks are numbered round-robin over the hosts,
// each rank's contribution travels on its own, and the hierarchy saves no traffic. Partial sums of
// 16-bit types travel in float32.
//
// With h <= 4 hosts, a carrier exchanges directly with the other carriers of its lane: for a
// lane of n bytes, it sends n(h-1)/h bytes of each partial sum and n(h-1)/h bytes of the result. If
// there are more hosts, and each has a single partial sum over the same power of two of ranks, the
// carriers use recursive halving and doubling instead (recursive.cpp). A broadcast passes from host
// to host in a binomial tree.
//
// all_gather and reduce_scatter have blocks instead of lanes. The elements that a rank gives to the
// ranks of another host, or gets from them, pass through one rank of that host, which is chosen by
// the ranks' positions on their hosts. all_gather: a rank sends its block to one rank of each other
// host, from whose scratch the ranks of that host fetch it. reduce_scatter: for each rank of
// another host, one rank of this host adds up this host's contributions to that rank's block,
// subtree by subtree, and sends the sums. So a rank that has most of the elements sends, or
// receives, most of its host's bytes.

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "paceline/engine/collectives/algorithms/message_algorithms.h"
#include "paceline/engine/collectives/algorithms/schedule_builder.h"
#include "paceline/engine/collectives/op_traits.h"

namespace paceline {

namespace {

// For every rank, the next rank that is on another host; the number of ranks if there is none.
std::vector<int> ends_of_runs(const std::vector<int>& host_of) {
  std::vector<int> ends(host_of.size(), static_cast<int>(host_of.size()));
  for (std::size_t rank = host_of.size(); rank-- > 1;) {
    const bool is_same = host_of[rank - 1] == host_of[rank];
    ends[rank - 1] = is_same ? ends[rank] : static_cast<int>(rank);
  }
  return ends;
}

// Collects the largest subtrees inside [first, first + number) whose ranks are all on one host.
void collect(const Hosts& hosts, const std::vector<int>& ends, int first, int number,
             std::vector<std::vector<Subtree>>& out) {
  const auto begin = static_cast<std::size_t>(first);
  if (ends[begin] >= first + number) {
    out[static_cast<std::size_t>(hosts.host_of[begin])].push_back({first, number});
    return;
  }
  const int left = floor_power_of_two(number - 1);
  collect(hosts, ends, first, left, out);
  collect(hosts, ends, first + left, number - left, out);
}

}  // namespace

std::vector<std::vector<Subtree>> subtrees_by_host(const Hosts& hosts) {
  std::vector<std::vector<Subtree>> all(hosts.size());
  collect(hosts, ends_of_runs(hosts.host_of), 0, hosts.world_size(), all);
  return all;
}

int ranks_of_equal_subtrees(const std::vector<std::vector<Subtree>>& by_host) {
  const int size = by_host.front().front().num_ranks;
  int first = 0;
  for (const auto& trees : by_host) {
    if (trees.size() != 1 || trees[0] != Subtree{first, size}) return 0;
    first += size;
  }
  return size;
}

// The base class of HierarchyOfBlocks and HierarchyOfLanes, for one rank: the hosts of the ranks,
// and the subtrees and contributions of this host's ranks.
class HierarchyRank {
 protected:
  // Requires: `builder` and `spec` outlive this object, and spec.hosts is set.
  HierarchyRank(ScheduleBuilder& builder, const ScheduleSpec& spec)
      : builder_(builder),
        spec_(spec),
        hosts_(*spec.hosts),
        host_(host_of(spec.rank)),
        subtrees_(subtrees_by_host(hosts_)) {}

  int num_hosts() const { return static_cast<int>(hosts_.size()); }
  int host_of(int rank) const { return hosts_.host_of[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& members(int host) const {
    return hosts_.members[static_cast<std::size_t>(host)];
  }
  const std::vector<Subtree>& own_subtrees() const {
    return subtrees_[static_cast<std::size_t>(host_)];
  }

  // The subtrees of all hosts in rank order, each with its host.
  std::vector<std::pair<Subtree, int>> all_subtrees() const {
    std::vector<std::pair<Subtree, int>> all;
    for (int host = 0; host < num_hosts(); ++host) {
      for (const Subtree& tree : subtrees_[static_cast<std::size_t>(host)]) {
        all.emplace_back(tree, host);
      }
    }
    std::sort(all.begin(), all.end(),
              [](const auto& a, const auto& b) { return a.first.first < b.first.first; });
    return all;
  }

  static std::vector<Operand> contributions(const Subtree& tree, Place place) {
    std::vector<Operand> operands;
    for (int rank = tree.first; rank < tree.first + tree.num_ranks; ++rank) {
      operands.push_back({place, rank});
    }
    return operands;
  }

  ScheduleBuilder& builder_;
  const ScheduleSpec& spec_;
  const Hosts& hosts_;
  const int host_;
  const std::vector<std::vector<Subtree>> subtrees_;  // the subtrees of each host
};

namespace {

// The places of all ranks' blocks in scratch, one after the other, for an all_gather or a
// reduce_scatter; the same on all ranks.
class Blocks {
 public:
  explicit Blocks(const ScheduleSpec& spec) {
    for (int rank = 0; rank < spec.world_size; ++rank) {
      counts_.push_back(spec.given(rank, rank).count);
      begins_.push_back(total_);
      total_ += counts_.back();
    }
  }
  Place place(int rank) const { return scratch(begins_[static_cast<std::size_t>(rank)]); }
  std::size_t count(int rank) const { return counts_[static_cast<std::size_t>(rank)]; }
  std::size_t largest() const { return *std::max_element(counts_.begin(), counts_.end()); }
  std::size_t total() const { return total_; }

 private:
  std::vector<std::size_t> counts_, begins_;
  std::size_t total_ = 0;
};

class HierarchyOfBlocks : private HierarchyRank {
 public:
  HierarchyOfBlocks(ScheduleBuilder& builder, const ScheduleSpec& spec)
      : HierarchyRank(builder, spec), blocks_(spec), own_(blocks_.count(spec.rank)) {}

  // Each rank's scratch has room for every rank's block. It holds the rank's own block, and the
  // blocks that the rank receives for its host.
  void all_gather() {
    const Place own = input(spec_.given(spec_.rank, spec_.rank).offset);
    builder_.copy(own, blocks_.place(spec_.rank), own_);
    for (int step = 1; step < num_hosts(); ++step) {
      const int other = (host_ + step) % num_hosts();
      builder_.send(receiver_for(spec_.rank, other), own, blocks_.place(spec_.rank), own_);
    }
    for (int step = 1; step < num_hosts(); ++step) {
      const int other = (host_ - step + num_hosts()) % num_hosts();
      for (const int rank : members(other)) {
        if (receiver_for(rank, host_) != spec_.rank) continue;
        const Place theirs = input(spec_.given(rank, spec_.rank).offset);
        builder_.receive(rank, theirs, blocks_.place(rank), blocks_.count(rank));
      }
    }
    builder_.meet();
    for (int rank = 0; rank < spec_.world_size; ++rank) {
      const int owner = host_of(rank) == host_ ? rank : receiver_for(rank, host_);
      builder_.copy(blocks_.place(rank), output(spec_.placed(rank, spec_.rank).offset),
                    blocks_.count(rank), owner);
    }
  }

  // Each rank's scratch holds its input, block by block. For each rank of another host, one rank of
  // this host adds up this host's contributions to that rank's block.
  void reduce_scatter() {
    for (int rank = 0; rank < spec_.world_size; ++rank) {
      builder_.copy(input(spec_.given(spec_.rank, rank).offset), blocks_.place(rank),
                    blocks_.count(rank));
    }
    builder_.meet();
    std::vector<Operand> operands;
    std::size_t raw = blocks_.total();
    std::size_t wide = kTurns * blocks_.largest();
    for (const auto& [tree, host] : all_subtrees()) {
      if (host == host_) {
        for (int rank = tree.first; rank < tree.first + tree.num_ranks; ++rank) {
          operands.push_back({blocks_.place(spec_.rank), rank});
        }
        continue;
      }
      const Place place = tree.num_ranks == 1 ? scratch(raw) : partial(wide);
      (tree.num_ranks == 1 ? raw : wide) += own_;
      builder_.receive(receiver_for(spec_.rank, host), place, place, own_);
      operands.push_back({place, -1, static_cast<std::size_t>(tree.num_ranks)});
    }
    help_other_hosts();
    builder_.reduce(operands, output(spec_.placed(spec_.rank, spec_.rank).offset), own_);
  }

 private:
  // The number of sums that may be in transfer at the same time.
  static constexpr std::size_t kTurns = 4;

  // The rank of `host` that does that host's work for `rank` of another host.
  int receiver_for(int rank, int host) const {
    return members(host)[hosts_.local_index(rank) % members(host).size()];
  }

  // Adds up and sends this rank's share of the sums for ranks of other hosts.
  void help_other_hosts() {
    const auto& trees = own_subtrees();
    std::size_t turn = 0;
    for (int step = 1; step < num_hosts(); ++step) {
      for (const int rank : members((host_ + step) % num_hosts())) {
        if (receiver_for(rank, host_) != spec_.rank) continue;
        for (std::size_t tree = 0; tree < trees.size(); ++tree) {
          const Place sum = partial((turn++ % kTurns) * blocks_.largest());
          send_sum(rank, trees[tree], blocks_.place(rank), sum, blocks_.count(rank));
        }
      }
    }
  }

  // Adds up a subtree's contributions into `sum` and sends it; a single contribution is sent as it
  // is.
  void send_sum(int peer, const Subtree& tree, Place from, Place sum, std::size_t count) {
    if (tree.num_ranks == 1) {
      builder_.send(peer, from, from, count, tree.first);
      return;
    }
    builder_.reduce(contributions(tree, from), sum, count);
    builder_.send(peer, sum, sum, count);
  }

  const Blocks blocks_;
  const std::size_t own_;  // number of elements of this rank's block
};

// The largest number of single-rank subtrees whose contributions one rank receives from other
// hosts; each needs its own scratch.
std::size_t most_single_contributions(const Hosts& hosts) {
  std::vector<std::size_t> singles;
  for (const auto& trees : subtrees_by_host(hosts)) {
    singles.push_back(static_cast<std::size_t>(std::count_if(
        trees.begin(), trees.end(), [](const Subtree& tree) { return tree.num_ranks == 1; })));
  }
  const auto all = std::accumulate(singles.begin(), singles.end(), std::size_t{0});
  return all - *std::min_element(singles.begin(), singles.end());
}

}  // namespace

Schedule build_hierarchy_of_blocks(const ScheduleSpec& spec) {
  ScheduleBuilder builder(spec);
  HierarchyOfBlocks hierarchy(builder, spec);
  if (reduces(spec.op)) {
    hierarchy.reduce_scatter();
  } else {
    hierarchy.all_gather();
  }
  return builder.take();
}

std::size_t hierarchy_block_count(Op op, std::span<const std::size_t> counts, const Hosts& hosts,
                                  std::size_t room) {
  const std::size_t largest = *std::max_element(counts.begin(), counts.end());
  const std::size_t singles = op == Op::kReduceScatterV ? most_single_contributions(hosts) : 0;
  const auto fits = [&](std::size_t most) {
    std::size_t scratch = singles * std::min(most, largest);
    for (const std::size_t count : counts) scratch += std::min(most, count);
    return scratch <= room;
  };
  std::size_t most = 1;
  std::size_t too_many = largest + 1;
  while (too_many > most + 1) {
    const std::size_t middle = most + (too_many - most) / 2;
    (fits(middle) ? most : too_many) = middle;
  }
  return most;
}

namespace {

constexpr std::size_t kMaxDirectHosts = 4;

class HierarchyOfLanes : private HierarchyRank {
 public:
  HierarchyOfLanes(ScheduleBuilder& builder, const ScheduleSpec& spec)
      : HierarchyRank(builder, spec),
        local_(hosts_.neighbours(spec.rank)),
        position_(hosts_.local_index(spec.rank)),
        num_lanes_(local_.size()) {
    for (const auto& members : hosts_.members) num_lanes_ = std::min(num_lanes_, members.size());
  }

  // Each rank's scratch holds its input, then the result.
  void all_reduce() {
    stage(spec_.count);
    if (carries()) {
      const Chunk lane = lane_of(position_);
      if (runs_recursively()) {
        add_up_recursively(lane);
      } else {
        add_up_directly(lane);
      }
    }
    builder_.meet();
    fetch_lanes(spec_.count);
  }

  // Like all_reduce(), but every lane's sum is computed on the root's host only.
  void reduce() {
    stage(spec_.count);
    const int root_host = host_of(spec_.root);
    if (carries()) {
      const Chunk lane = lane_of(position_);
      add_own(lane, 0, lane.count());
      if (host_ == root_host) {
        receive_and_finish(lane, 0, lane.count(), scratch(spec_.count + lane.begin));
      } else {
        send_partials(carrier(root_host), 0, lane.count());
      }
    }
    if (host_ != root_host) return;
    builder_.meet();
    if (spec_.rank == spec_.root) fetch_lanes(spec_.count);
  }

  // The root's scratch holds the buffer; the scratch of a carrier on another host holds its lane.
  void broadcast() {
    const int root_host = host_of(spec_.root);
    if (spec_.rank == spec_.root) {
      builder_.copy(input(0), scratch(0), spec_.count);
      builder_.copy(input(0), output(0), spec_.count);
    }
    if (host_ == root_host) builder_.meet();
    if (carries()) pass_on(root_host);
    if (host_ != root_host) builder_.meet();
    if (host_ == root_host) {
      if (spec_.rank != spec_.root) builder_.copy(scratch(0), output(0), spec_.count, spec_.root);
      return;
    }
    fetch_lanes(0);
  }

 private:
  bool carries() const { return position_ < num_lanes_; }
  // The rank that carries this rank's lane on another host.
  int carrier(int host) const { return members(host)[position_]; }
  Chunk lane_of(std::size_t position) const {
    return chunk_of(spec_.count, static_cast<int>(position), static_cast<int>(num_lanes_));
  }

  void stage(std::size_t count) {
    builder_.copy(input(0), scratch(0), count);
    builder_.meet();
  }

  // Fetches the result of each lane from its carrier, where it begins at `base` of the carrier's
  // scratch.
  void fetch_lanes(std::size_t base) {
    for (std::size_t lane = 0; lane < num_lanes_; ++lane) {
      const Chunk chunk = lane_of(lane);
      builder_.copy(scratch(base + chunk.begin), output(chunk.begin), chunk.count(), local_[lane]);
    }
  }

  // ---- lanes: the partial sum of this host's subtree t begins at t times the length of lane 0

  Place own_sum(std::size_t tree, std::size_t offset) const {
    return partial(tree * lane_of(0).count() + offset);
  }

  // Adds up this host's contributions to [begin, begin + count) of the lane: one partial sum for
  // each subtree of more than one rank.
  void add_own(const Chunk& lane, std::size_t begin, std::size_t count) {
    const auto& trees = own_subtrees();
    for (std::size_t tree = 0; tree < trees.size(); ++tree) {
      if (trees[tree].num_ranks == 1) continue;
      builder_.reduce(contributions(trees[tree], scratch(lane.begin + begin)), own_sum(tree, begin),
                      count);
    }
  }

  void send_partials(int peer, std::size_t begin, std::size_t count) {
    const auto& trees = own_subtrees();
    const Place from = scratch(lane_of(position_).begin + begin);
    for (std::size_t tree = 0; tree < trees.size(); ++tree) {
      if (trees[tree].num_ranks == 1) {
        builder_.send(peer, from, from, count, trees[tree].first);
      } else {
        builder_.send(peer, own_sum(tree, begin), own_sum(tree, begin), count);
      }
    }
  }

  // Receives the other hosts' partial sums of [begin, begin + count) of the lane, and adds up the
  // partial sums of all hosts into `to`.
  void receive_and_finish(const Chunk& lane, std::size_t begin, std::size_t count, Place to) {
    const std::size_t longest = lane_of(0).count();
    std::size_t wide = own_subtrees().size() * longest;
    std::size_t raw = 2 * spec_.count;
    std::vector<std::size_t> seen(hosts_.size());
    std::vector<Operand> operands;
    for (const auto& [tree, host] : all_subtrees()) {
      const std::size_t number = seen[static_cast<std::size_t>(host)]++;
      const auto ranks = static_cast<std::size_t>(tree.num_ranks);
      if (host == host_) {
        if (tree.num_ranks == 1) {
          operands.push_back({scratch(lane.begin + begin), tree.first});
        } else {
          operands.push_back({own_sum(number, begin), -1, ranks});
        }
        continue;
      }
      const Place place = tree.num_ranks == 1 ? scratch(raw) : partial(wide);
      (tree.num_ranks == 1 ? raw : wide) += count;
      builder_.receive(carrier(host), place, place, count);
      operands.push_back({place, -1, ranks});
    }
    builder_.reduce(operands, to, count);
  }

  // Each host's carrier finishes one part of the lane and sends it to the other carriers.
  void add_up_directly(const Chunk& lane) {
    const auto part_of = [&](int host) { return chunk_of(lane.count(), host, num_hosts()); };
    const auto result = [&](const Chunk& part) {
      return scratch(spec_.count + lane.begin + part.begin);
    };
    for (int step = 1; step < num_hosts(); ++step) {
      const int other = (host_ + step) % num_hosts();
      const Chunk part = part_of(other);
      add_own(lane, part.begin, part.count());
      send_partials(carrier(other), part.begin, part.count());
    }
    const Chunk mine = part_of(host_);
    add_own(lane, mine.begin, mine.count());
    receive_and_finish(lane, mine.begin, mine.count(), result(mine));
    for (int step = 1; step < num_hosts(); ++step) {
      const int other = (host_ + step) % num_hosts();
      builder_.send(carrier(other), result(mine), result(mine), mine.count());
    }
    for (int step = 1; step < num_hosts(); ++step) {
      const int other = (host_ - step + num_hosts()) % num_hosts();
      const Chunk part = part_of(other);
      builder_.receive(carrier(other), result(part), result(part), part.count());
    }
  }

  bool runs_recursively() const {
    return hosts_.size() > kMaxDirectHosts && ranks_of_equal_subtrees(subtrees_) > 0;
  }

  void add_up_recursively(const Chunk& lane) {
    Team team;
    for (int host = 0; host < num_hosts(); ++host) team.ranks.push_back(carrier(host));
    team.index = host_;
    team.leaf_ranks = local_.size();
    team.leaf = local_.size() == 1 ? scratch(lane.begin) : own_sum(0, 0);
    team.result = scratch(spec_.count + lane.begin);
    team.scratch_base = 2 * spec_.count;
    team.partial_base = lane_of(0).count();
    add_own(lane, 0, lane.count());
    add_halving_all_reduce(builder_, team, lane.count());
  }

  // Passes the buffer from host to host in a binomial tree, in which hosts are counted from the
  // root's host.
  void pass_on(int root_host) {
    const Chunk lane = lane_of(position_);
    const int distance = (host_ - root_host + num_hosts()) % num_hosts();
    const auto carrier_at = [&](int from_root) {
      return carrier((root_host + from_root) % num_hosts());
    };
    int step = 1 << levels_of(num_hosts());
    const Place place = scratch(lane.begin);
    if (distance != 0) {
      step = distance & -distance;
      builder_.receive(carrier_at(distance - step), place, place, lane.count());
    }
    for (step /= 2; step > 0; step /= 2) {
      if (distance + step >= num_hosts()) continue;
      builder_.send(carrier_at(distance + step), place, place, lane.count(),
                    distance == 0 ? spec_.root : -1);
    }
  }

  const std::vector<int>& local_;
  const std::size_t position_;
  std::size_t num_lanes_;
};

}  // namespace

Schedule build_hierarchy(const ScheduleSpec& spec) {
  ScheduleBuilder builder(spec);
  HierarchyOfLanes hierarchy(builder, spec);
  switch (spec.op) {
    case Op::kAllReduce:
      hierarchy.all_reduce();
      break;
    case Op::kReduce:
      hierarchy.reduce();
      break;
    case Op::kBroadcast:
      hierarchy.broadcast();
      break;
    default:
      return build_hierarchy_of_blocks(spec);
  }
  return builder.take();
}

}  // namespace paceline
