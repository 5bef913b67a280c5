#pragma once

// The timeline of the ranks that an agent starts: where they record it, and the trace that is made
// of it at the end of the job, however that came.

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
  // none, which is reported at the end. `shared`: other hosts' ranks may also record there.
  JobTimeline(std::string output, std::string directory, bool shared);

  // What tells this rank of this generation where to record.
  void add_variables(Environment& environment, int rank, int generation);
  // Writes the trace and removes the ranks' files, which stay when that fails; a line for the user,
  // or "".
  std::string finish() const;
  // Of a job whose trace is made on another host: gives each of the ranks' files to `send`, packed,
  // and removes them; what the user should know of those that could not be, or "".
  std::string hand_over(const std::function<void(const std::string&)>& send) const;

 private:
  std::vector<std::string> own_files() const;

  const std::string output_;
  const std::string directory_;
  const bool shared_;
  std::set<std::string> own_names_;
};

// The timelines of the ranks of all hosts, as they arrive at the launcher of --hosts, and the one
// trace that is made of them at the end of the job. Between the two they are in a folder of their
// own in TMPDIR.
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
