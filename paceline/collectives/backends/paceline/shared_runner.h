#pragma once

// Carries out schedules (algorithms/in_shared_memory.h, algorithms/by_package.h) among ranks that
// map each other's memory: scratch and partials lie in the ranks' staging areas.
//
// Thread safety: none; one executor owns it.

#include <vector>

#include "paceline/collectives/algorithms/schedule.h"
#include "paceline/collectives/backends/paceline/group_share.h"
#include "paceline/collectives/backends/paceline/symmetric_regions.h"
#include "paceline/collectives/kernels/reduce.h"

namespace paceline {

// A part of a call, with what its schedule needs.
struct SharedPiece {
  using Copy = void (*)(std::byte* to, const std::byte* from, std::size_t bytes);

  const SharedOperation& operation;
  const Schedule& schedule;
  unsigned turn = 0;         // of the staging areas
  std::size_t begin = 0;     // element of the call, or of each of its blocks
  std::size_t partials = 0;  // where they begin in the staging area, in bytes
  Copy copy = copy_bytes;
};

class SharedRunner {
 public:
  // All outlive this object.
  SharedRunner(const Mesh& mesh, GroupShare& share, const SymmetricRegions& regions);

  // The steps before the first meeting, which have to do with this rank's memory alone.
  void prepare(const SharedPiece& piece) { run_from(piece, 0); }
  // The steps behind it, when the ranks have met.
  void finish(const SharedPiece& piece);
  // All steps, meetings too. Requires, of a schedule in place: the ranks have entered, with places
  // that regions.hold_all() accepts.
  void run(const SharedPiece& piece);

 private:
  std::size_t run_from(const SharedPiece& piece, std::size_t step);
  void meet_and_run_from(const SharedPiece& piece, std::size_t step);
  std::byte* address(const SharedPiece& piece, const Place& place, int owner) const;
  std::byte* buffer(const SharedPiece& piece, bool is_input, int owner) const;
  void aim(const SharedPiece& piece, const Step& step);
  void copy(const SharedPiece& piece, const Step& step);
  void reduce(const SharedPiece& piece, const Step& step);

  const Mesh& mesh_;
  GroupShare& share_;
  const SymmetricRegions& regions_;
  // Of the step under way.
  std::vector<ReduceSource> sources_;
  std::vector<std::byte*> targets_;
};

}  // namespace paceline
