#pragma once

// The timelines of a job's ranks: where the ranks of one agent record them, how the timelines of
// all hosts are collected, and the trace that is written at the end of the job, however the job
// ends.

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "paceline/engine/core/error.h"
#include "paceline/launcher/messages/clock_comparison.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

class JobTimeline {
 public:
  // `output`: the path of the trace; empty: no trace is wanted. `directory`: the folder for the
  // ranks' files; empty: there is none, which is reported at the end. `shared`: ranks of other
  // hosts may record in the same folder.
  JobTimeline(std::string output, std::string directory, bool shared);

  // Sets the variable that tells this rank of this generation where to record.
  void add_variables(Environment& environment, int rank, int generation);
  // Writes the trace and removes the ranks' files; they stay if the trace cannot be written.
  // Returns lines for the user, or "".
  std::string finish() const;
  // For a job whose trace is written on another host: passes each of the ranks' files to `send`,
  // packed, and removes the file. Returns lines about files that could not be sent, or "".
  std::string hand_over(const std::function<void(const std::string&)>& send) const;

 private:
  std::vector<std::string> own_files() const;

  const std::string output_;
  const std::string directory_;
  const bool shared_;
  std::set<std::string> own_names_;
};

// Collects the timelines of all hosts as they arrive at the launcher of --hosts, in a new folder in
// TMPDIR (or /tmp), and writes them as one trace at the end of the job.
//
// Thread safety: none.
class TimelineCollection {
 public:
  struct Host {
    std::string name;
    ClockComparison clock;
  };

  // `output`: the path of the trace; empty: no trace is wanted.
  explicit TimelineCollection(std::string output);
  TimelineCollection(const TimelineCollection&) = delete;
  TimelineCollection& operator=(const TimelineCollection&) = delete;
  ~TimelineCollection();

  // Stores the packed timeline of one rank. If that fails, finish() reports it.
  void take(std::size_t host, const std::string& packed);
  // Writes the trace and returns lines for the user, or "". `hosts`: in the job's order.
  std::string finish(const std::vector<Host>& hosts);

 private:
  struct Arrival {
    std::size_t host = 0;
    std::string path;
  };

  void keep(std::size_t host, const std::string& packed);
  void put_on_one_clock(const std::vector<Host>& hosts);
  void leave_out(const Host& host, const std::string& path, const Error& error);
  std::string missing_hosts(const std::vector<Host>& hosts) const;

  const std::string output_;
  std::string folder_;  // made when the first timeline arrives
  std::vector<Arrival> arrivals_;
  std::string problems_;  // lines for the user
};

}  // namespace paceline::launcher
