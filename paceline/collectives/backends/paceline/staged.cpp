#include "paceline/collectives/backends/paceline/staged.h"

#include <algorithm>

#include "paceline/collectives/algorithms/direct.h"
#include "paceline/collectives/backends/paceline/shared_route.h"
#include "paceline/collectives/kernels/reduce.h"

namespace paceline {
namespace {

// What this rank reduces of its own input, and for whom.
Block own_chunk(const Schedule& schedule) {
  for (const Step& step : schedule.steps) {
    if (step.kind == Step::Kind::kReduce) return {own_offset(schedule, step), step.count};
  }
  return {};
}

}  // namespace

Staged::Staged(const Mesh& mesh, GroupShare& share, SharedSchedules& schedules)
    : mesh_(mesh),
      share_(share),
      schedules_(schedules),
      contributions_(static_cast<std::size_t>(mesh.world_size())) {}

void Staged::run(const SharedOperation& operation) {
  const auto& call = operation.call;
  const std::size_t most = staged_piece_count(call.op, call.dtype, mesh_.world_size());
  for (std::size_t begin = 0; begin < call.count; begin += most) {
    const std::size_t count = std::min(most, call.count - begin);
    const Schedule& schedule = schedule_for(operation, count);
    share_.begin_piece();
    copy_in(operation, schedule, begin, count);
    share_.meet(operation);
    run_piece(operation, schedule, begin, count);
  }
}

void Staged::run_blocks(const SharedOperation& operation) {
  const auto& call = operation.call;
  const int rank = mesh_.rank();
  const int world = mesh_.world_size();
  const std::size_t most = staged_piece_count(call.op, call.dtype, mesh_.world_size());
  const std::size_t length = *std::max_element(call.counts.begin(), call.counts.end());
  const BlockTable blocks = BlockTable::of(call, world);
  ScheduleSpec spec{call.op, rank, world};
  std::size_t begin = 0;
  do {
    share_.begin_piece();
    const BlockTable piece = blocks.piece(call.op, begin, most, false);
    const BlockTable packed = blocks.piece(call.op, begin, most, true);
    const int receivers = gives_blocks(call.op) ? world : 1;
    for (int to = 0; to < receivers; ++to) {
      spec.blocks = &piece;
      const Block source = spec.given(rank, to);
      spec.blocks = &packed;
      copy_bytes(share_.area(rank) + spec.given(rank, to).offset * operation.element,
                 call.input + source.offset * operation.element, source.count * operation.element);
    }
    share_.meet(operation);
    carry_out(operation, build_direct(spec), share_.area(rank), call.output);
    begin += most;
  } while (begin < length);
}

// The staging area holds a piece of each input block, one after the other, but for what no other
// rank reads: a rank takes its own from its input.
void Staged::copy_in(const SharedOperation& operation, const Schedule& schedule, std::size_t begin,
                     std::size_t count) {
  const auto& call = operation.call;
  if (call.input == nullptr) return;
  const std::size_t element = operation.element;
  std::byte* to = share_.area(mesh_.rank());
  const auto copy = [&](std::size_t block, std::size_t first, std::size_t last) {
    copy_bytes(to + (block * count + first) * element,
               call.input + (block * call.count + begin + first) * element,
               (last - first) * element);
  };
  if (gives_blocks(call.op)) {
    for (std::size_t block = 0; block < operation.blocks_in; ++block) {
      if (block != static_cast<std::size_t>(mesh_.rank())) copy(block, 0, count);
    }
    return;
  }
  const Block own = operation.hands_around() ? own_chunk(schedule) : Block();
  copy(0, 0, own.offset);
  copy(0, own.offset + own.count, count);
}

void Staged::run_piece(const SharedOperation& operation, const Schedule& schedule,
                       std::size_t begin, std::size_t count) {
  const auto& call = operation.call;
  const auto at = [&](auto* buffer, std::size_t offset) {
    return buffer == nullptr ? nullptr : buffer + offset * operation.element;
  };
  // The blocks of a piece lie `count` apart and those of the input further; of them a rank only
  // takes its own.
  const std::size_t block = gives_blocks(call.op) ? static_cast<std::size_t>(mesh_.rank()) : 0;
  carry_out(operation, schedule, at(call.input, begin + block * (call.count - count)),
            at(call.output, begin));
}

// `input`: where this rank's own part lies at the offset that it has in the staging area.
void Staged::carry_out(const SharedOperation& operation, const Schedule& schedule,
                       const std::byte* input, std::byte* output) {
  const auto& call = operation.call;
  const std::size_t element = operation.element;
  const bool hands_around = operation.hands_around();
  bool results_are_there = false;
  const auto wait_for_results = [&] {
    if (results_are_there || !hands_around) return;
    results_are_there = true;
    share_.meet(operation);
  };
  for (const Step& step : schedule.steps) {
    const std::size_t bytes = step.count * element;
    if (step.kind == Step::Kind::kCopy) {
      copy_bytes(output + step.to.offset * element, input + step.from.offset * element, bytes);
    } else if (step.kind == Step::Kind::kReduce) {
      const std::size_t own = own_offset(schedule, step) * element;
      contributions_[static_cast<std::size_t>(mesh_.rank())] = input + own;
      targets_.clear();
      if (step.to.space == Space::kOutput) targets_.push_back(output + step.to.offset * element);
      if (hands_around) targets_.push_back(share_.area(mesh_.rank()) + own);
      reduce(contributions_, targets_, step.count, call.dtype, call.reduce_op, call.divisor);
    } else if (step.kind == Step::Kind::kReceive) {
      const bool is_result = step.from.space != Space::kInput;
      if (is_result) wait_for_results();
      // A result lies in its maker's staging area where the input of that chunk would be: at the
      // offset it has in the output.
      const std::size_t offset = is_result ? step.to.offset : step.from.offset;
      const std::byte* source = share_.area(step.peer) + offset * element;
      if (step.to.space == Space::kScratch) {
        contributions_[static_cast<std::size_t>(step.peer)] = source;
      } else {
        copy_bytes(output + step.to.offset * element, source, bytes);
      }
    }
  }
  wait_for_results();  // also for ranks that fetch nothing
}

const Schedule& Staged::schedule_for(const SharedOperation& operation, std::size_t count) {
  const auto& call = operation.call;
  return schedules_.find(
      {call.op, mesh_.rank(), mesh_.world_size(), call.root, count, count, call.count},
      operation.is_one_shot ? build_one_shot_all_reduce : build_direct);
}

}  // namespace paceline
