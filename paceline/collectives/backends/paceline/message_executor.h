#pragma once

// Runs schedules over messages: between hosts, and wherever ranks do not share memory. Large calls
// are cut into pieces, so that slots stay small.
//
// Every rank sends every other rank at least one message per collective, bare header if the
// schedule has nothing for it, and waits for one from each: a mismatch or a missing rank is noticed
// by all. So every collective synchronises, broadcast too.
//
// Thread safety: none; calls come one at a time.

#include <vector>

#include "paceline/collectives/backend.h"
#include "paceline/collectives/schedule.h"
#include "paceline/transport/exchange.h"
#include "paceline/transport/mesh.h"

namespace paceline {

class MessageExecutor {
 public:
  // Requires: `mesh` outlives this object.
  explicit MessageExecutor(Mesh& mesh) : mesh_(mesh), exchange_(mesh) {}

  void run(const Collective& call, const Fingerprint& fingerprint, const WaitOptions& wait);

 private:
  struct Operation;

  void greet_silent_peers(const Operation& operation, const Schedule& schedule);
  void run_piece(const Operation& operation, const Schedule& schedule, std::size_t begin);
  void reduce_step(const Operation& operation, const Step& step, std::size_t begin);
  void run_until_idle(const Operation& operation);
  std::byte* slot(std::size_t number) { return slots_.data() + number * slot_bytes_; }

  Mesh& mesh_;
  Exchange exchange_;
  std::vector<std::byte> slots_;
  std::size_t slot_bytes_ = 0;
};

}  // namespace paceline
