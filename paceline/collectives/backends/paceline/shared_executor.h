#pragma once

// Runs collectives among ranks that map each other's memory. Two ways:
//
//   zero-copy  when all ranks' buffers are in symmetric memory: peers' input is read in place,
//   results of a reduce are written straight
//              into the peers' output, and so is a share of a large broadcast by its root. Two
//              phases: everybody has come, everybody is done.
//   staged     for any other memory, and for tiny calls: what peers read is copied, piece by piece,
//              into a shared staging area that stays in the L2 cache. One phase per piece, two when
//              there is a reduce to hand around. Two areas are used in turn, so that no phase is
//              needed for "everybody is done": who arrives at the next phase has finished with the
//              last area but one.
//
// Thread safety: none; calls come one at a time.

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "paceline/collectives/backends/paceline/phase_barrier.h"
#include "paceline/collectives/planner.h"
#include "paceline/collectives/schedule.h"
#include "paceline/transport/mesh.h"

namespace paceline {

class SharedExecutor {
 public:
  // Collective: allocates the control blocks and staging areas. Error(kSystem) on every rank when
  // there is no memory for them.
  SharedExecutor(Mesh& mesh, Deadline deadline);

  void run(const Collective& call, const Fingerprint& fingerprint, const WaitOptions& wait);
  std::string explain(const PlanRequest& request) const;
  // Collective.
  std::shared_ptr<SharedBlocks> allocate(std::size_t bytes, Pages pages, Deadline deadline);
  // Whether this rank's memory lies in what allocate() gave.
  bool is_symmetric(const void* data, std::size_t bytes) const {
    return find(data, bytes).region >= 0;
  }

 private:
  struct Operation;  // one call with all that its steps need

  // An allocation of the group, by the number that all ranks give it; dead once this rank has freed
  // it.
  struct Region {
    std::int64_t number = 0;
    std::weak_ptr<SharedBlocks> owner;
    SharedBlocks* blocks = nullptr;
  };

  bool fits_one_piece(const Collective& call, std::size_t most_bytes) const;
  std::size_t piece_count(const Collective& call) const;
  SharedPlace find(const void* data, std::size_t bytes) const;
  SharedBlocks* region(std::int64_t number) const;
  Announcement announcement_for(const Operation& operation) const;
  void enter(const Operation& operation, const Announcement& announcement);
  void enter_with_places(const Operation& operation, const Announcement& announcement);
  void run_tiny(const Operation& operation);
  void run_small(const Operation& operation);
  void run_large(const Operation& operation);
  bool all_symmetric(const Operation& operation) const;
  void require_inside(const Operation& operation) const;
  using Copy = void (*)(std::byte* to, const std::byte* from, std::size_t bytes);
  Copy copy_for(const Operation& operation) const;
  void run_zero_copy(const Operation& operation);
  void broadcast_together(const Operation& operation);
  void run_staged(const Operation& operation);
  void run_staged_blocks(const Operation& operation);
  void copy_in(const Operation& operation, const Schedule& schedule, std::size_t begin,
               std::size_t count);
  void run_piece(const Operation& operation, const Schedule& schedule, std::size_t begin,
                 std::size_t count);
  void carry_out(const Operation& operation, const Schedule& schedule, const std::byte* input,
                 std::byte* output);
  const Schedule& staged_schedule(const Operation& operation, std::size_t count);
  void reduce_and_deliver(const Operation& operation, const Schedule& schedule, const Step& step);
  const Schedule& schedule_for(const ScheduleSpec& spec, bool one_shot);
  void meet(const Operation& operation);

  std::byte* staging(int rank) const;
  std::byte* symmetric(int rank, const SharedPlace& place) const;

  Mesh& mesh_;
  std::shared_ptr<SharedBlocks> blocks_;
  PhaseBarrier barrier_;
  const std::size_t most_tiny_, most_one_shot_;  // bytes; the same on every rank
  std::vector<Region> regions_;
  std::int64_t num_allocations_ = 0;
  std::unordered_map<std::uint64_t, std::pair<ScheduleSpec, Schedule>> schedules_;
  // What the ranks said of the collective under way: copies, so that nobody changes them any more.
  std::vector<Announcement> announced_;
  // For the reduce under way: every rank's contribution, and where the result goes.
  std::vector<const std::byte*> contributions_;
  std::vector<std::byte*> targets_;
  unsigned staging_turn_ = 0;
};

}  // namespace paceline
