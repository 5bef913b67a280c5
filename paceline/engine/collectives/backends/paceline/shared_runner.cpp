#include "paceline/engine/collectives/backends/paceline/shared_runner.h"

#include <algorithm>

namespace paceline {
namespace {

// Of what goes to several places, it stays in a core's cache from one to the next.
constexpr std::size_t kHandedBytes = 64 << 10;

}  // namespace

SharedRunner::SharedRunner(const Mesh& mesh, GroupShare& share, const SymmetricRegions& regions)
    : rank_(mesh.rank()), share_(share), regions_(regions) {
  for (const unsigned turn : {0u, 1u}) {
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      bases_of_turns_[turn].push_back({nullptr, nullptr, share.area(rank, turn), nullptr});
    }
  }
}

void SharedRunner::find_bases(const SharedPiece& piece) {
  const auto& call = piece.operation.call;
  const std::size_t element = piece.operation.element;
  const auto begin_in = [&](std::byte* buffer) {
    return buffer == nullptr ? nullptr : buffer + piece.begin * element;
  };
  bases_ = &bases_of_turns_[piece.turn & 1];
  sizes_ = {element, element, element, partial_size_of(call.dtype)};
  if (piece.is_in_place || piece.partials > 0) {
    for (std::size_t rank = 0; rank < bases_->size(); ++rank) {
      const int owner = static_cast<int>(rank);
      auto& [input, output, scratch, partial] = (*bases_)[rank];
      partial = scratch + piece.partials;
      if (!piece.is_in_place) continue;
      const Announcement& said = share_.announced(owner);
      input = begin_in(regions_.at(owner, said.input));
      output = begin_in(regions_.at(owner, said.output));
    }
  }
  auto& [input, output, scratch, partial] = (*bases_)[static_cast<std::size_t>(rank_)];
  input = begin_in(const_cast<std::byte*>(call.input));
  output = begin_in(call.output);
}

void SharedRunner::prepare(const SharedPiece& piece) {
  find_bases(piece);
  run_from(piece, 0);
}

void SharedRunner::run(const SharedPiece& piece) {
  find_bases(piece);
  meet_and_run_from(piece, run_from(piece, 0));
}

void SharedRunner::finish(const SharedPiece& piece) {
  meet_and_run_from(piece, run_from(piece, piece.schedule.first_meeting + 1));
}

// `step` is a meeting, or the end.
void SharedRunner::meet_and_run_from(const SharedPiece& piece, std::size_t step) {
  while (step < piece.schedule.steps.size()) {
    share_.meet(piece.operation);
    step = run_from(piece, step + 1);
  }
}

// Until the next meeting, or the end; returns where that is.
std::size_t SharedRunner::run_from(const SharedPiece& piece, std::size_t step) {
  const auto& steps = piece.schedule.steps;
  for (; step < steps.size() && steps[step].kind != Step::Kind::kMeet; ++step) {
    if (steps[step].kind == Step::Kind::kReduce) {
      reduce(piece, steps[step]);
    } else {
      copy(piece, steps[step]);
    }
  }
  return step;
}

void SharedRunner::aim(const SharedPiece& piece, const Step& step) {
  if (step.num_targets == 0) {
    targets_.resize(1);
    targets_[0] = address(step.to, -1);
    return;
  }
  targets_.resize(step.num_targets);
  for (std::size_t i = 0; i < step.num_targets; ++i) {
    const Target& target = piece.schedule.targets[step.first_target + i];
    targets_[i] = address(target.place, target.owner);
  }
}

void SharedRunner::copy(const SharedPiece& piece, const Step& step) {
  const std::size_t bytes = step.count * piece.operation.element;
  const std::byte* const from = address(step.from, step.owner);
  if (step.num_targets == 0) return piece.copy(address(step.to, -1), from, bytes);
  aim(piece, step);
  const std::size_t most = targets_.size() > 1 ? kHandedBytes : bytes;
  for (std::size_t begin = 0; begin < bytes; begin += most) {
    for (std::byte* const to : targets_) {
      piece.copy(to + begin, from + begin, std::min(most, bytes - begin));
    }
  }
}

void SharedRunner::reduce(const SharedPiece& piece, const Step& step) {
  const auto& call = piece.operation.call;
  sources_.resize(step.num_operands);
  for (std::size_t i = 0; i < step.num_operands; ++i) {
    const Operand& operand = piece.schedule.operands[step.first_operand + i];
    sources_[i] = {address(operand.place, operand.owner), operand.num_ranks,
                   operand.place.space == Space::kPartial};
  }
  aim(piece, step);
  const bool is_partial = step.num_targets == 0 && step.to.space == Space::kPartial;
  reduce_partials(sources_, targets_, step.count, call.dtype, call.reduce_op,
                  is_partial ? ReduceResult::kPartial : ReduceResult::kFinal,
                  divisor_of(call, static_cast<int>(bases_->size())));
}

}  // namespace paceline
