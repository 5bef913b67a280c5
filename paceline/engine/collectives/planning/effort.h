#pragma once

// What each algorithm costs the busiest rank or host: the formulas that the planner's prediction is
// made of. Pure, and in the planner's arithmetic (planner.h), so that all ranks come to the same.

#include "paceline/engine/collectives/op.h"

namespace paceline {

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
