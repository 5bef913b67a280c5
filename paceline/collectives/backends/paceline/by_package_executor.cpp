#include "paceline/collectives/backends/paceline/by_package_executor.h"

#include <algorithm>
#include <optional>

#include "paceline/collectives/algorithms/by_package.h"
#include "paceline/collectives/algorithms/direct.h"

namespace paceline {
namespace {

// The steps between two of a schedule's meetings.
std::span<const Step> steps_of_phase(const Schedule& schedule, int phase) {
  const auto is_meeting = [](const Step& step) { return step.kind == Step::Kind::kMeet; };
  auto begin = schedule.steps.begin();
  auto end = std::find_if(begin, schedule.steps.end(), is_meeting);
  for (; phase > 0; --phase) {
    begin = end + 1;
    end = std::find_if(begin, schedule.steps.end(), is_meeting);
  }
  return {begin, end};
}

}  // namespace

// The elements [begin, begin + count) of the call, or of each of its blocks.
struct ByPackageExecutor::Piece {
  const SharedOperation& operation;
  std::size_t begin;
  std::size_t count;
  bool is_staged;
  std::size_t partials;  // where they begin in the staging area, in bytes
  unsigned turn;         // of the staging areas

  // An element of the packed piece, in the caller's buffer.
  std::size_t offset_in_call(std::size_t offset) const {
    return offset / count * operation.call.count + begin + offset % count;
  }
};

ByPackageExecutor::ByPackageExecutor(const Mesh& mesh, GroupShare& share,
                                     const SymmetricRegions& regions, SharedSchedules& schedules,
                                     const Hosts& packages)
    : mesh_(mesh),
      share_(share),
      regions_(regions),
      schedules_(schedules),
      packages_(packages),
      own_package_(packages.neighbours(mesh.rank())) {}

// The area that a piece's sums were made in is written again two pieces later, which nobody begins
// before all have met behind the piece in between.
void ByPackageExecutor::run_in_place(const SharedOperation& operation) {
  std::optional<Piece> last;
  for (std::size_t begin = 0; begin < operation.call.count;) {
    const Piece piece = begin_piece(operation, begin, false);
    if (last) combine(*last);
    add_up(piece);
    share_.meet(operation);
    last.emplace(piece);
    begin += piece.count;
  }
  combine(*last);
  share_.meet(operation);
}

void ByPackageExecutor::run_staged(const SharedOperation& operation) {
  for (std::size_t begin = 0; begin < operation.call.count;) {
    const Piece piece = begin_piece(operation, begin, true);
    copy_in(piece);
    share_.meet(operation);
    add_up(piece);
    share_.meet(operation);
    combine(piece);
    if (operation.call.op != Op::kReduceScatter) {
      share_.meet(operation);
      fetch(piece);
    }
    begin += piece.count;
  }
}

ByPackageExecutor::Piece ByPackageExecutor::begin_piece(const SharedOperation& operation,
                                                        std::size_t begin, bool is_staged) {
  const auto& call = operation.call;
  const std::size_t most =
      by_package_piece_count(call.op, call.dtype, packages_, GroupShare::kAreaBytes, is_staged);
  const std::size_t count = std::min(most, call.count - begin);
  return {operation,
          begin,
          count,
          is_staged,
          partials_offset(call.op, call.dtype, packages_, count, is_staged),
          share_.begin_piece()};
}

// All but what only this rank reads: its own lane, where its results go.
void ByPackageExecutor::copy_in(const Piece& piece) {
  const auto& operation = piece.operation;
  const std::size_t element = operation.element;
  const int ranks = static_cast<int>(own_package_.size());
  const int position = static_cast<int>(packages_.local_index(mesh_.rank()));
  const auto copy = [&](std::size_t first, std::size_t last) {
    copy_bytes(share_.area(mesh_.rank(), piece.turn) + first * element,
               operation.call.input + piece.offset_in_call(first) * element,
               (last - first) * element);
  };
  if (operation.call.op == Op::kReduceScatter) {
    for (int block = 0; block < mesh_.world_size(); ++block) {
      const std::size_t first = static_cast<std::size_t>(block) * piece.count;
      if (block % ranks != position) copy(first, first + piece.count);
    }
    return;
  }
  const Chunk lane = chunk_of(piece.count, position, ranks);
  if (lane.begin > 0) copy(0, lane.begin);
  if (lane.end < piece.count) copy(lane.end, piece.count);
}

// This package's contributions to what this rank carries.
void ByPackageExecutor::add_up(const Piece& piece) {
  const Schedule& schedule = schedule_for(piece);
  for (const Step& step : steps_of_phase(schedule, 0)) reduce(piece, schedule, step);
}

// The packages' sums.
void ByPackageExecutor::combine(const Piece& piece) {
  const Schedule& schedule = schedule_for(piece);
  for (const Step& step : steps_of_phase(schedule, 1)) reduce(piece, schedule, step);
}

// The results of the other ranks of this package.
void ByPackageExecutor::fetch(const Piece& piece) {
  const std::size_t element = piece.operation.element;
  for (const Step& step : steps_of_phase(schedule_for(piece), 2)) {
    const int owner = step.owner < 0 ? mesh_.rank() : step.owner;
    copy_bytes(piece.operation.call.output + (piece.begin + step.to.offset) * element,
               share_.area(owner, piece.turn) + step.from.offset * element, step.count * element);
  }
}

void ByPackageExecutor::reduce(const Piece& piece, const Schedule& schedule, const Step& step) {
  const auto& call = piece.operation.call;
  sources_.clear();
  for (std::size_t i = 0; i < step.num_operands; ++i) {
    const Operand& operand = schedule.operands[step.first_operand + i];
    const bool is_partial = operand.place.space == Space::kPartial;
    sources_.push_back({address(piece, operand), operand.num_ranks, is_partial});
  }
  targets_.clear();
  aim(piece, step.to);
  const bool is_partial = step.to.space == Space::kPartial;
  reduce_partials(sources_, targets_, step.count, call.dtype, call.reduce_op,
                  is_partial ? ReduceResult::kPartial : ReduceResult::kFinal,
                  divisor_of(call, mesh_.world_size()));
}

const std::byte* ByPackageExecutor::address(const Piece& piece, const Operand& operand) const {
  const auto& operation = piece.operation;
  const int owner = operand.owner < 0 ? mesh_.rank() : operand.owner;
  const std::size_t offset = operand.place.offset;
  if (operand.place.space == Space::kPartial) {
    return partials(piece, owner) + offset * partial_size_of(operation.call.dtype);
  }
  if (owner != mesh_.rank() && piece.is_staged) {
    return share_.area(owner, piece.turn) + offset * operation.element;
  }
  const std::byte* input = owner == mesh_.rank()
                               ? operation.call.input
                               : regions_.at(owner, share_.announced(owner).input);
  return input + piece.offset_in_call(offset) * operation.element;
}

// Where a result goes. In place, those that others would fetch are given to them.
void ByPackageExecutor::aim(const Piece& piece, const Place& to) {
  const auto& operation = piece.operation;
  const std::size_t bytes = to.offset * operation.element;
  const std::size_t in_output = piece.begin * operation.element + bytes;
  if (to.space == Space::kPartial) {
    targets_.push_back(partials(piece, mesh_.rank()) +
                       to.offset * partial_size_of(operation.call.dtype));
  } else if (to.space == Space::kOutput) {
    targets_.push_back(operation.call.output + in_output);
  } else if (piece.is_staged) {
    targets_.push_back(share_.area(mesh_.rank(), piece.turn) + bytes);
  } else {
    for (const int rank : own_package_) {
      const bool gets_it = operation.call.op == Op::kAllReduce || rank == operation.call.root;
      if (!gets_it) continue;
      targets_.push_back(regions_.at(rank, share_.announced(rank).output) + in_output);
    }
  }
}

std::byte* ByPackageExecutor::partials(const Piece& piece, int rank) const {
  return share_.area(rank, piece.turn) + piece.partials;
}

// The piece's blocks lie side by side in it.
const Schedule& ByPackageExecutor::schedule_for(const Piece& piece) {
  const auto& call = piece.operation.call;
  ScheduleSpec spec{call.op,     mesh_.rank(), mesh_.world_size(), call.root,
                    piece.count, piece.count,  piece.count};
  spec.hosts = &packages_;
  return schedules_.find(spec, build_by_package);
}

}  // namespace paceline
