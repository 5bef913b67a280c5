#pragma once

// The timelines of the ranks of all hosts, as they arrive at the launcher of --hosts, and the one
// trace that is made of them at the end of the job. Between the two they are in a folder of their
// own in TMPDIR.
//
// Thread safety: none.

#include <cstddef>
#include <string>
#include <vector>

#include "paceline/launcher/messages/clock_comparison.h"

namespace paceline::launcher {

class TimelineCollection {
 public:
  struct Host {
    std::string name;
    ClockComparison clock;
  };

  // `output`: the trace; empty: none is wanted.
  explicit TimelineCollection(std::string output);
  TimelineCollection(const TimelineCollection&) = delete;
  TimelineCollection& operator=(const TimelineCollection&) = delete;
  ~TimelineCollection();

  // One rank's, packed. What cannot be kept is reported at the end.
  void take(std::size_t host, const std::string& packed);
  // Writes the trace; lines for the user, or "". `hosts` in the job's order.
  std::string finish(const std::vector<Host>& hosts);

 private:
  struct Arrival {
    std::size_t host = 0;
    std::string path;
  };

  void keep(std::size_t host, const std::string& packed);
  void put_on_one_clock(const std::vector<Host>& hosts);
  std::string missing_hosts(const std::vector<Host>& hosts) const;

  const std::string output_;
  std::string folder_;  // once the first has arrived
  std::vector<Arrival> arrivals_;
  std::string problems_;  // lines for the user
};

}  // namespace paceline::launcher
