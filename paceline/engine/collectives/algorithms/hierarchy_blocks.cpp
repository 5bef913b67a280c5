#include "paceline/engine/collectives/algorithms/hierarchy_blocks.h"

#include <algorithm>
#include <numeric>

#include "paceline/engine/collectives/algorithms/hierarchy_rank.h"

namespace paceline {
namespace {

// The ranks' blocks of a gather or a reduce_scatter, one after the other in scratch: alike on all
// ranks.
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

  // Scratch: every rank's block, where a rank of this host has it.
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

  // Scratch: every rank's input, block by block. For each rank of another host one rank of this
  // host adds up what its host gives to it.
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
  // Sums that may be on their way at a time.
  static constexpr std::size_t kTurns = 4;

  // The rank of `host` that does what there is to do there for `rank` of another host.
  int receiver_for(int rank, int host) const {
    return members(host)[hosts_.local_index(rank) % members(host).size()];
  }

  // Adds up and sends what this rank has to for the blocks of other hosts' ranks.
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

  // Adds up a subtree into `sum` and sends it; a single contribution is sent as it is.
  void send_sum(int peer, const Subtree& tree, Place from, Place sum, std::size_t count) {
    if (tree.num_ranks == 1) {
      builder_.send(peer, from, from, count, tree.first);
      return;
    }
    builder_.reduce(contributions(tree, from), sum, count);
    builder_.send(peer, sum, sum, count);
  }

  const Blocks blocks_;
  const std::size_t own_;  // elements of this rank's block
};

// The most subtrees of one rank that a rank gets from other hosts, each in scratch of its own.
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

}  // namespace paceline
