#pragma once

// The costs of communication on a machine, by which the planner chooses and the simulator predicts.
// The defaults are those of an ordinary server with a 10 Gbit/s network; `paceline bench
// --calibrate` measures them (calibration.h). A value; times are in seconds, rates in bytes per
// second.

#include <string>

#include "paceline/engine/collectives/op_traits.h"

namespace paceline {

struct LinkCost {
  double latency_s = 0;  // time from a send to its arrival, for a small message
  double message_s = 0;  // processor time of each end, for each message
  // The rate of the link that a host's ranks share; for sockets, the rate of one rank, for both
  // directions together.
  double bytes_per_s = 1;
  bool operator==(const LinkCost&) const = default;
};

struct CostModel {
  LinkCost network{.latency_s = 25e-6, .message_s = 4e-6, .bytes_per_s = 1.17e9};
  // The link between ranks of one host, for messages.
  LinkCost sockets{.latency_s = 8e-6, .message_s = 3e-6, .bytes_per_s = 3e9};
  double reduce_bytes_per_s = 10e9;  // counts the bytes that a reduce reads
  double copy_bytes_per_s = 8e9;
  double meet_s = 1.5e-6;           // time for the ranks of a host to meet in shared memory
  std::string origin = "defaults";  // for explanations: "defaults", or host and date
  // The largest spread of all quantities (QuantitySpread). 0.1 is steady; 1 means that the machine
  // was busy with other work.
  double spread = 0;
  bool operator==(const CostModel&) const = default;
};

// The result of the formulas by which the planner predicts times: the effort of the busiest rank or
// host in each algorithm. The formulas are pure and use the planner's arithmetic (planner.h), so
// that all ranks get the same result.
struct Effort {
  double rounds = 0;
  double messages = 0;
  double network_bytes = 0;
  double socket_bytes = 0;  // bytes that a rank's processor sends and receives through sockets
  double reduce_bytes = 0;
  double copy_bytes = 0;
  double meetings = 0;
};

// The sizes that the formulas use.
struct CallSizes {
  double p;         // ranks
  double hosts;     // number of hosts
  double m;         // number of ranks on the largest host
  double levels;    // levels of a binary tree over the ranks, rounded up
  double full;      // levels of a binary tree over `owners` ranks
  double owners;    // the largest power of two that is at most p
  double rest;      // p - owners
  double wide;      // size of a partial sum's element, divided by the size of an element
  double n;         // bytes of the whole buffer, or of one block
  double partials;  // largest number of subtrees on a host (algorithms/message_algorithms.h)
  bool is_in_blocks;
};

// One formula for each algorithm (algorithm.h). `chunk`: the bytes of a chain's chunk.
namespace effort {
Effort direct(Op op, const CallSizes& sizes, double chunk);
Effort one_shot(Op op, const CallSizes& sizes, double chunk);
Effort tree(Op op, const CallSizes& sizes, double chunk);
Effort doubling(Op op, const CallSizes& sizes, double chunk);
Effort halving(Op op, const CallSizes& sizes, double chunk);
Effort ring(Op op, const CallSizes& sizes, double chunk);
Effort bruck(Op op, const CallSizes& sizes, double chunk);
Effort chain(Op op, const CallSizes& sizes, double chunk);
Effort hierarchy(Op op, const CallSizes& sizes, double chunk);
}  // namespace effort

}  // namespace paceline
