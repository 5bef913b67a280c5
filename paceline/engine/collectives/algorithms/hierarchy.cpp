#include "paceline/engine/collectives/algorithms/hierarchy.h"

#include "paceline/engine/collectives/algorithms/direct.h"
#include "paceline/engine/collectives/algorithms/hierarchy_blocks.h"
#include "paceline/engine/collectives/algorithms/hierarchy_rank.h"
#include "paceline/engine/collectives/algorithms/recursive.h"

namespace paceline {
namespace {

constexpr std::size_t kMostDirectHosts = 4;

class HierarchyOfLanes : private HierarchyRank {
 public:
  HierarchyOfLanes(ScheduleBuilder& builder, const ScheduleSpec& spec)
      : HierarchyRank(builder, spec),
        local_(hosts_.neighbours(spec.rank)),
        position_(hosts_.local_index(spec.rank)),
        num_lanes_(local_.size()) {
    for (const auto& members : hosts_.members) num_lanes_ = std::min(num_lanes_, members.size());
  }

  // Scratch: every rank's input, then the result.
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

  // As all_reduce, but every lane's sum is made on the root's host.
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

  // Scratch: the buffer.
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

  // From every lane's carrier, where the result begins at `base` of its scratch.
  void fetch_lanes(std::size_t base) {
    for (std::size_t lane = 0; lane < num_lanes_; ++lane) {
      const Chunk chunk = lane_of(lane);
      builder_.copy(scratch(base + chunk.begin), output(chunk.begin), chunk.count(), local_[lane]);
    }
  }

  // ---- lanes: the partial sum of subtree t of this host begins at t times the lane's length

  Place own_sum(std::size_t tree, std::size_t offset) const {
    return partial(tree * lane_of(0).count() + offset);
  }

  // This host's part [begin, begin + count) of the lane, a partial for each subtree of more than
  // one rank.
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

  // All hosts' partial sums of [begin, begin + count) of the lane into `to`.
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

  // Each host's carrier finishes a part of the lane and hands it to the others.
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
    return hosts_.size() > kMostDirectHosts && ranks_of_equal_subtrees(subtrees_) > 0;
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

  // Between hosts, counted from the root's, in a binomial tree; from the root's own scratch there.
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
