#pragma once

// Notices that ranks stand still: none of this machine begins an operation any more, and some rank
// has waited in one for all that time. A rank that only computes is no hang as long as nobody waits
// for it for so long. Whether the job hangs, and because of whom, is found together with the other
// hosts (hang_inquiry.h).
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

namespace paceline::launch {

class HangWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // `directory` has the records.
  HangWatch(std::chrono::nanoseconds timeout, std::string directory);

  // How often to look.
  std::chrono::nanoseconds interval() const;
  // These ranks stand still: true once, and every quarter of the timeout again until it is settled
  // or there is progress.
  bool look(const std::vector<int>& ranks, Clock::time_point now = Clock::now());
  // This standstill has been spoken of; when `settled`, all that can be known of it was said.
  void tell(bool settled);
  // After one that was spoken of: the seconds that it took, once, when there is progress again.
  std::optional<double> take_recovery();

 private:
  bool is_waited_long(const std::vector<int>& ranks) const;

  const std::chrono::nanoseconds timeout_;
  const std::string directory_;
  std::map<int, std::uint64_t> begun_;
  Clock::time_point moved_;     // the last progress
  Clock::time_point reported_;  // when look() last said so, of this standstill
  bool told_ = false, settled_ = false;
  std::optional<double> recovered_;
};

}  // namespace paceline::launch
