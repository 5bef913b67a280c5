#pragma once

// Paceline itself as a contestant, measured like every other library.

#include "paceline/engine/collectives/group/process_group.h"

#include "apps/bench/contestant/contestant.h"

namespace paceline::bench {

class OwnContestant : public Contestant {
 public:
  // `how` is printed after the transport in version(): ", algorithm ring".
  explicit OwnContestant(std::shared_ptr<ProcessGroup> group, std::string how = "")
      : group_(std::move(group)), how_(std::move(how)) {}

  std::string version() const override;
  std::string lacks(Op op, Dtype dtype, Placement placement) const override;
  bool has_symmetric_memory() const override { return true; }
  Memory allocate(MemoryKind kind, std::size_t bytes) override;
  void run(const Collective& call) override;
  bool coalesces() const override { return true; }
  void run_coalesced(const Collective& call, std::size_t parts) override;

 private:
  std::shared_ptr<ProcessGroup> group_;
  const std::string how_;
};

// Measures `calls` calls, in place if that is usual for the operation, with ordinary memory that is
// written before each call. Returns the median of the calls' times, in seconds; the time of a call
// is that of its slowest rank. Collective. Errors are those of the group.
double seconds_of(ProcessGroup& group, Op op, Dtype dtype, std::size_t bytes, int calls);

}  // namespace paceline::bench
