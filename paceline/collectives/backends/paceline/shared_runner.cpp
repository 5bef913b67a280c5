#include "paceline/collectives/backends/paceline/shared_runner.h"

#include <algorithm>

namespace paceline {
namespace {

// Of what goes to several places, it stays in a core's cache from one to the next.
constexpr std::size_t kHandedBytes = 64 << 10;

}  // namespace

SharedRunner::SharedRunner(const Mesh& mesh, GroupShare& share, const SymmetricRegions& regions)
    : mesh_(mesh), share_(share), regions_(regions) {}

// Called for every range of every step: a tiny call has four.
inline std::byte* SharedRunner::address(const SharedPiece& piece, const Place& place,
                                        int owner) const {
  const std::size_t element = piece.operation.element;
  if (place.space == Space::kScratch || place.space == Space::kPartial) {
    std::byte* const area = share_.area(owner < 0 ? mesh_.rank() : owner, piece.turn);
    if (place.space == Space::kScratch) return area + place.offset * element;
    return area + piece.partials + place.offset * partial_size_of(piece.operation.call.dtype);
  }
  return buffer(piece, place.space == Space::kInput, owner) +
         (piece.begin + place.offset) * element;
}

inline std::byte* SharedRunner::buffer(const SharedPiece& piece, bool is_input, int owner) const {
  const auto& call = piece.operation.call;
  if (owner < 0) return is_input ? const_cast<std::byte*>(call.input) : call.output;
  const Announcement& said = share_.announced(owner);
  return regions_.at(owner, is_input ? said.input : said.output);
}

void SharedRunner::run(const SharedPiece& piece) { meet_and_run_from(piece, run_from(piece, 0)); }

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
  targets_.clear();
  if (step.num_targets == 0) targets_.push_back(address(piece, step.to, -1));
  for (std::size_t i = 0; i < step.num_targets; ++i) {
    const Target& target = piece.schedule.targets[step.first_target + i];
    targets_.push_back(address(piece, target.place, target.owner));
  }
}

void SharedRunner::copy(const SharedPiece& piece, const Step& step) {
  const std::size_t bytes = step.count * piece.operation.element;
  const std::byte* const from = address(piece, step.from, step.owner);
  if (step.num_targets == 0) return piece.copy(address(piece, step.to, -1), from, bytes);
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
  sources_.clear();
  for (std::size_t i = 0; i < step.num_operands; ++i) {
    const Operand& operand = piece.schedule.operands[step.first_operand + i];
    sources_.push_back({address(piece, operand.place, operand.owner), operand.num_ranks,
                        operand.place.space == Space::kPartial});
  }
  aim(piece, step);
  const bool is_partial = step.num_targets == 0 && step.to.space == Space::kPartial;
  reduce_partials(sources_, targets_, step.count, call.dtype, call.reduce_op,
                  is_partial ? ReduceResult::kPartial : ReduceResult::kFinal,
                  divisor_of(call, mesh_.world_size()));
}

}  // namespace paceline
