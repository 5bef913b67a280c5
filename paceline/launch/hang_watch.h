#pragma once

// Notices that a job stands still: no rank of this machine begins an operation any more, and some
// rank has waited in one for all that time. A rank that only computes is no hang as long as nobody
// waits for it for so long.
//
// Progress is known by the flight records: eight bytes of each rank's file, read from outside. The
// ranks notice nothing. Programs that make no group leave no records and are never said to hang.
//
// Thread safety: none.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paceline/collectives/flight/explain.h"

namespace paceline::launch {

struct Hang {
  double seconds = 0;      // since the last progress
  std::string sentence;    // who is where
  std::vector<int> ranks;  // of whom it is said; may be empty
  std::vector<Flight> flights;
};

class HangWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // `directory` has the records.
  HangWatch(std::chrono::nanoseconds timeout, std::string directory);

  // How often to look.
  std::chrono::nanoseconds interval() const;
  // A hang, once for each standstill.
  std::optional<Hang> look(const std::vector<int>& ranks, Clock::time_point now = Clock::now());
  // After a hang: the seconds that it took, once, when there is progress again.
  std::optional<double> take_recovery();

 private:
  std::optional<Hang> judge(double seconds) const;

  const std::chrono::nanoseconds timeout_;
  const std::string directory_;
  std::map<int, std::uint64_t> begun_;
  Clock::time_point moved_;  // the last progress
  bool told_ = false;
  std::optional<double> recovered_;
};

}  // namespace paceline::launch
