#pragma once

// What failures and slow ranks take from a long run.
//
// Failures come at random, with the mean time M between two of the whole job. A run saves every
// `interval`, which costs `checkpoint`, and after a failure `restart` passes before it goes on from
// the last checkpoint. The expected time of a unit of work is that of J. T. Daly, "A higher order
// estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
// Systems 22 (2006), equation 13; the best interval is his equation 37, which begins with
// sqrt(2 checkpoint M), J. W. Young, "A first order approximation to the optimum checkpoint
// interval", Communications of the ACM 17 (1974).
//
// Thread safety: pure functions.

namespace paceline::planning {

struct FailureCosts {
  double mtbf_s = 0;  // of the job; 0: there are no failures
  double checkpoint_s = 0;
  double restart_s = 0;
};

// Seconds of work between checkpoints. Requires: mtbf_s > 0, checkpoint_s > 0.
double best_interval(const FailureCosts& costs);

// The share of time, 0 to 1, in which the run makes progress that it keeps. Without failures what
// checkpoints leave.
double goodput(const FailureCosts& costs, double interval_s);

// By how many standard deviations the slowest of so many ranks is above the mean: the expected
// largest of n normal numbers, by G. Blom's approximation (1958). 0 for one rank.
double slowest_of(int ranks);

}  // namespace paceline::planning
