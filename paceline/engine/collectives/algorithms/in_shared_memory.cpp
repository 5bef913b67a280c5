#include "paceline/engine/collectives/algorithms/in_shared_memory.h"

#include "paceline/engine/collectives/algorithms/message_algorithms.h"
#include "paceline/engine/collectives/algorithms/schedule_builder.h"
#include "paceline/engine/collectives/op_traits.h"

namespace paceline {
namespace {

// Whether `from` has a block for `to`.
bool gives(const ScheduleSpec& spec, int from, int to) {
  if (spec.op == Op::kGather) return to == spec.root;
  return spec.op != Op::kScatter || from == spec.root;
}

// The contributions of all ranks, in rank order: this rank's at `own`, the others' at `others`.
std::vector<Operand> contributions(const ScheduleSpec& spec, Place own, Place others) {
  std::vector<Operand> operands;
  for (int rank = 0; rank < spec.world_size; ++rank) {
    operands.push_back({rank == spec.rank ? own : others, rank});
  }
  return operands;
}

class InPlaceBuilder {
 public:
  explicit InPlaceBuilder(const ScheduleSpec& spec) : spec_(spec), builder_(spec) {}

  Schedule build() {
    switch (spec_.op) {
      case Op::kAllReduce:
      case Op::kReduce:
        reduce_chunk();
        break;
      case Op::kReduceScatter:
      case Op::kReduceScatterV:
        reduce_block();
        break;
      case Op::kBroadcast:
        broadcast();
        break;
      case Op::kGather:
      case Op::kScatter:
        fetch_blocks();
        break;
      case Op::kAllGather:
      case Op::kAllGatherV:
        push_to_all();
        break;
      case Op::kAllToAll:
      case Op::kAllToAllV:
        push_to_each();
        break;
      default:
        break;
    }
    return builder_.take();
  }

 private:
  // `place` in the memory of this rank, then of each other rank, beginning with the next rank.
  std::vector<Target> on_all_ranks(Place place) const {
    std::vector<Target> targets = {{place, spec_.rank}};
    builder_.for_each_peer([&](int peer) { targets.push_back({place, peer}); });
    return targets;
  }

  void reduce_chunk() {
    const Chunk mine = chunk_of(spec_.count, spec_.rank, spec_.world_size);
    const Place from = input(mine.begin), to = output(mine.begin);
    builder_.reduce_to(
        contributions(spec_, from, from),
        spec_.op == Op::kAllReduce ? on_all_ranks(to) : std::vector<Target>{{to, spec_.root}},
        mine.count());
  }

  void reduce_block() {
    const Block own = spec_.given(spec_.rank, spec_.rank);
    builder_.reduce(contributions(spec_, input(own.offset), input(own.offset)),
                    output(spec_.placed(spec_.rank, spec_.rank).offset), own.count);
  }

  // In a large broadcast, the caller chooses spec.chunk so that all ranks have about the same work.
  void broadcast() {
    if (spec_.rank != spec_.root) {
      return builder_.copy(input(0), output(0), spec_.chunk, spec_.root);
    }
    builder_.copy(input(0), output(0), spec_.count);
    builder_.for_each_peer([&](int peer) {
      builder_.copy_to(input(spec_.chunk), {{output(spec_.chunk), peer}},
                       spec_.count - spec_.chunk);
    });
  }

  void fetch_blocks() {
    const auto fetch = [&](int from) {
      if (!gives(spec_, from, spec_.rank)) return;
      const Block block = spec_.given(from, spec_.rank);
      builder_.copy(input(block.offset), output(spec_.placed(from, spec_.rank).offset), block.count,
                    from);
    };
    fetch(spec_.rank);
    builder_.for_each_peer(fetch);
  }

  void push_to_all() {
    const Block own = spec_.given(spec_.rank, spec_.rank);
    builder_.copy_to(input(own.offset),
                     on_all_ranks(output(spec_.placed(spec_.rank, spec_.rank).offset)), own.count);
  }

  void push_to_each() {
    const auto hand = [&](int to) {
      const Block block = spec_.given(spec_.rank, to);
      builder_.copy_to(input(block.offset), {{output(spec_.placed(spec_.rank, to).offset), to}},
                       block.count);
    };
    hand(spec_.rank);
    builder_.for_each_peer(hand);
  }

  const ScheduleSpec& spec_;
  ScheduleBuilder builder_;
};

class StagedBuilder {
 public:
  explicit StagedBuilder(const ScheduleSpec& spec) : spec_(spec), builder_(spec) {}

  Schedule build() {
    switch (spec_.op) {
      case Op::kAllReduce:
      case Op::kReduce:
        reduce_chunks();
        break;
      case Op::kReduceScatter:
      case Op::kReduceScatterV:
        reduce_blocks();
        break;
      case Op::kBroadcast:
        broadcast();
        break;
      case Op::kGather:
      case Op::kScatter:
      case Op::kAllGather:
      case Op::kAllGatherV:
      case Op::kAllToAll:
      case Op::kAllToAllV:
        move_blocks();
        break;
      default:
        builder_.meet();
        break;
    }
    return builder_.take();
  }

  Schedule build_one_shot() {
    stage(0, spec_.count);
    builder_.meet();
    builder_.reduce(contributions(spec_, input(0), scratch(0)), output(0), spec_.count);
    return builder_.take();
  }

 private:
  void stage(std::size_t begin, std::size_t end) {
    builder_.copy(input(begin), scratch(begin), end - begin);
  }
  Place staged_block(int to) const {
    return scratch(gives_blocks(spec_.op) ? static_cast<std::size_t>(to) * spec_.count : 0);
  }
  void stage_block(int to) {
    const Block block = spec_.given(spec_.rank, to);
    builder_.copy(input(block.offset), staged_block(to), block.count);
  }

  // Stages every chunk except the one that this rank reduces itself.
  void reduce_chunks() {
    const Chunk mine = chunk_of(spec_.count, spec_.rank, spec_.world_size);
    const bool gets_result = spec_.op == Op::kAllReduce || spec_.rank == spec_.root;
    const bool is_fetched = spec_.op == Op::kAllReduce || spec_.rank != spec_.root;
    stage(0, mine.begin);
    stage(mine.end, spec_.count);
    builder_.meet();
    std::vector<Target> targets;
    if (gets_result) targets.push_back({output(mine.begin), spec_.rank});
    if (is_fetched) targets.push_back({scratch(mine.begin), spec_.rank});
    builder_.reduce_to(contributions(spec_, input(mine.begin), scratch(mine.begin)), targets,
                       mine.count());
    builder_.meet();
    if (!gets_result) return;
    builder_.for_each_peer([&](int peer) {
      const Chunk theirs = chunk_of(spec_.count, peer, spec_.world_size);
      builder_.copy(scratch(theirs.begin), output(theirs.begin), theirs.count(), peer);
    });
  }

  void reduce_blocks() {
    for (int to = 0; to < spec_.world_size; ++to) {
      if (to != spec_.rank) stage_block(to);
    }
    builder_.meet();
    const Block own = spec_.given(spec_.rank, spec_.rank);
    builder_.reduce(contributions(spec_, input(own.offset), staged_block(spec_.rank)),
                    output(spec_.placed(spec_.rank, spec_.rank).offset), own.count);
  }

  void broadcast() {
    const bool is_root = spec_.rank == spec_.root;
    if (is_root) stage(0, spec_.count);
    builder_.meet();
    builder_.copy(is_root ? input(0) : scratch(0), output(0), spec_.count, spec_.root);
  }

  // A block that goes to all ranks is staged only once.
  void move_blocks() {
    const int rank = spec_.rank;
    if (gives_blocks(spec_.op)) {
      builder_.for_each_peer([&](int to) {
        if (gives(spec_, rank, to)) stage_block(to);
      });
    } else if (spec_.op != Op::kGather || rank != spec_.root) {
      stage_block(rank);
    }
    builder_.meet();
    if (gives(spec_, rank, rank)) {
      const Block own = spec_.given(rank, rank);
      builder_.copy(input(own.offset), output(spec_.placed(rank, rank).offset), own.count);
    }
    builder_.for_each_peer([&](int from) {
      if (!gives(spec_, from, rank)) return;
      builder_.copy(staged_block(rank), output(spec_.placed(from, rank).offset),
                    spec_.given(from, rank).count, from);
    });
  }

  const ScheduleSpec& spec_;
  ScheduleBuilder builder_;
};

}  // namespace

Schedule build_in_place(const ScheduleSpec& spec) { return InPlaceBuilder(spec).build(); }
Schedule build_staged(const ScheduleSpec& spec) { return StagedBuilder(spec).build(); }
Schedule build_staged_one_shot(const ScheduleSpec& spec) {
  return StagedBuilder(spec).build_one_shot();
}

}  // namespace paceline
