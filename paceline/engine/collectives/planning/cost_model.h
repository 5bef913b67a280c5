#pragma once

// What communication costs on a machine: the numbers by which the planner chooses and the simulator
// predicts. The defaults are those of an ordinary server with a 10 Gbit/s network; `paceline bench
// --calibrate` measures them (group/calibration.h). A value; times in seconds, rates in bytes a
// second.

#include <string>

namespace paceline {

struct LinkCost {
  double latency_s = 0;    // from a send to its arrival, for a small message
  double message_s = 0;    // processor time of each end, for each message
  double bytes_per_s = 1;  // link shared by a host's ranks; sockets: a rank's, in and out together
  bool operator==(const LinkCost&) const = default;
};

struct CostModel {
  LinkCost network{.latency_s = 25e-6, .message_s = 4e-6, .bytes_per_s = 1.17e9};
  // Between ranks of one host, by messages.
  LinkCost sockets{.latency_s = 8e-6, .message_s = 3e-6, .bytes_per_s = 3e9};
  double reduce_bytes_per_s = 10e9;  // of what a reduce reads
  double copy_bytes_per_s = 8e9;
  double meet_s = 1.5e-6;  // for the ranks of a host to wait for each other in shared memory
  std::string origin = "defaults";  // for explanations: defaults, or host and date of measuring
  // By which the repetitions of the measurement differed: of the quantity that was worst, as a part
  // of it. 0.1 is steady, 1 a machine that does something else meanwhile.
  double spread = 0;
  bool operator==(const CostModel&) const = default;
};

}  // namespace paceline
