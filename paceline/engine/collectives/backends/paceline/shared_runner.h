#pragma once

// Carries out schedules (algorithms/in_shared_memory.h, algorithms/by_package.h) among ranks that
// map each other's memory: scratch and partials lie in the ranks' staging areas.
//
// Thread safety: none; one executor owns it.

#include <array>
#include <cstddef>
#include <vector>

#include "paceline/engine/collectives/algorithms/schedule.h"
#include "paceline/engine/collectives/backends/paceline/group_share.h"
#include "paceline/engine/collectives/backends/paceline/symmetric_regions.h"
#include "paceline/engine/collectives/kernels/reduce.h"

namespace paceline {

// A part of a call, with what its schedule needs.
struct SharedPiece {
  using Copy = void (*)(std::byte* to, const std::byte* from, std::size_t bytes);

  const SharedOperation& operation;
  const Schedule& schedule;
  unsigned turn = 0;         // of the staging areas
  std::size_t begin = 0;     // element of the call, or of each of its blocks
  std::size_t partials = 0;  // where they begin in the staging area, in bytes
  bool is_in_place = false;  // the other ranks' buffers are read and written where they lie
  Copy copy = copy_bytes;
};

class SharedRunner {
 public:
  // All outlive this object.
  SharedRunner(const Mesh& mesh, GroupShare& share, const SymmetricRegions& regions);

  // The steps before the first meeting, which have to do with this rank's memory alone.
  void prepare(const SharedPiece& piece);
  // The steps behind it, when the ranks have met. Requires: prepared.
  void finish(const SharedPiece& piece);
  // All steps, meetings too. Requires, of a piece in place: the ranks have entered, with places
  // that regions.hold_all() accepts.
  void run(const SharedPiece& piece);

 private:
  // Where the piece lies in a rank's memory, by Space. Of other ranks' buffers only in place.
  using Bases = std::array<std::byte*, 4>;

  void find_bases(const SharedPiece& piece);
  std::size_t run_from(const SharedPiece& piece, std::size_t step);
  void meet_and_run_from(const SharedPiece& piece, std::size_t step);
  std::byte* address(const Place& place, int owner) const {
    const auto space = static_cast<std::size_t>(place.space);
    const auto rank = static_cast<std::size_t>(owner < 0 ? rank_ : owner);
    return (*bases_)[rank][space] + place.offset * sizes_[space];
  }
  void aim(const SharedPiece& piece, const Step& step);
  void copy(const SharedPiece& piece, const Step& step);
  void reduce(const SharedPiece& piece, const Step& step);

  const int rank_;
  GroupShare& share_;
  const SymmetricRegions& regions_;
  // By rank, with the scratch of either turn.
  std::array<std::vector<Bases>, 2> bases_of_turns_;
  // Of the piece under way; sizes of an element, by Space.
  std::vector<Bases>* bases_ = nullptr;
  std::array<std::size_t, 4> sizes_{};
  // Of the step under way.
  std::vector<ReduceSource> sources_;
  std::vector<std::byte*> targets_;
};

}  // namespace paceline
