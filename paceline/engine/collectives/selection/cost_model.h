#pragma once

// What communication costs on a machine: the numbers by which the planner chooses and the simulator
// predicts. The defaults are those of an ordinary server with a 10 Gbit/s network; `paceline bench
// --calibrate` measures them (calibration.h). A value; times in seconds, rates in bytes a
// second.

#include <string>

#include "paceline/engine/collectives/op.h"

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
  // By how much the repetitions of the worst quantity differed, as a part of it. 0.1 is steady, 1 a
  // machine that does something else meanwhile.
  double spread = 0;
  bool operator==(const CostModel&) const = default;
};

// What each algorithm costs the busiest rank or host: the formulas that the planner's prediction is
// made of. Pure, and in the planner's arithmetic (planner.h), so that all ranks come to the same.
struct Effort {
  double rounds = 0;
  double messages = 0;
  double network_bytes = 0;
  double socket_bytes = 0;  // that a rank's processor moves, sent and received
  double reduce_bytes = 0;
  double copy_bytes = 0;
  double meetings = 0;
};

// What the formulas are made of.
struct CallSizes {
  double p;         // ranks
  double hosts;     // they are on
  double m;         // ranks of the largest host
  double levels;    // of a binary tree over the ranks, rounded up
  double full;      // levels of the largest power of two of ranks
  double owners;    // that power
  double rest;      // ranks beyond it
  double wide;      // bytes of a partial sum's element over those of an element
  double n;         // bytes: the whole buffer, or one block
  double partials;  // subtrees of a host
  bool is_in_blocks;
};

// One for each algorithm (algorithm.h). `chunk`: bytes, of a chain.
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
