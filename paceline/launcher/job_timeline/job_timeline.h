#pragma once

// The timelines of a job's ranks: where the ranks of one agent record them, how those of all hosts
// are collected, and the trace that is made of them at the end of the job, however that came.

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "paceline/launcher/messages/clock_comparison.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

class JobTimeline {
 public:
  // `output`: the trace; empty: none is wanted. `directory`: for the ranks' files; empty: there is
  // no folder, which is reported at the end. `shared`: other hosts' ranks may record there as well.
  JobTimeline(std::string output, std::string directory, bool shared);

  // Sets the variable that tells this rank of this generation where to record.
  void add_variables(Environment& environment, int rank, int generation);
  // Writes the trace and removes the ranks' files, which stay when that fails. Returns lines for
  // the user, or "".
  std::string finish() const;
  // For a job whose trace is made on another host: gives each of the ranks' files to `send`,
  // packed, and removes it. Returns lines about files that could not be sent, or "".
  std::string hand_over(const std::function<void(const std::string&)>& send) const;

 private:
  std::vector<std::string> own_files() const;

  const std::string output_;
  const std::string directory_;
  const bool shared_;
  std::set<std::string> own_names_;
};

// Collects the timelines of all hosts as they arrive at the launcher of --hosts, in a folder of its
// own in TMPDIR, and makes one trace of them at the end of the job.
//
// Thread safety: none.
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

  // Takes one rank's timeline, packed. One that cannot be kept is reported at the end.
  void take(std::size_t host, const std::string& packed);
  // Writes the trace and returns lines for the user, or "". `hosts` in the job's order.
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
  std::string folder_;  // made when the first timeline arrives
  std::vector<Arrival> arrivals_;
  std::string problems_;  // lines for the user
};

}  // namespace paceline::launcher
