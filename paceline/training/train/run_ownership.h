#pragma once

// Whether the state that a starting job finds is its own to go on with. The newest step alone does
// not say so: a directory, or a memory that the user named, may hold an older job's.
//
//   a first start               needs places without any state: what is there is somebody's
//   a first start that resumes  continues the run of the directory, or without one that of the
//                               newest memory; refuses a newest checkpoint of another run, unless
//                               it was told to take that one
//   a restart by the launcher   continues the run that its own job began, or begins it
//
// Pure: all ranks come to the same answer from the same facts.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paceline/files/checkpoint/run_mark.h"

namespace paceline::train {

// Where the newest checkpoint of a directory comes from, as far as that can be read.
struct FoundOrigin {
  std::int64_t step = 0;
  std::string run;  // empty: not known
  std::optional<std::uint64_t> seed;
};

// What is in one place.
struct FoundState {
  std::optional<std::int64_t> step;        // the newest; nothing: no state
  std::optional<RunMark> mark;             // whose it is, where that is said
  std::optional<FoundOrigin> newest = {};  // of a directory
};

struct FoundStates {
  std::string directory;  // its name
  FoundState on_disk;
  std::vector<FoundState> in_memory;  // by rank; one of each host may have some
};

struct JobStart {
  std::string job;         // the launcher's name for it
  bool restarted = false;  // by the launcher, after a failure
  bool resume = false;     // the user asked to continue
  bool other_run = false;  // also when the newest checkpoint is another run's
};

struct Ownership {
  std::string run;                    // that the job continues; empty: it begins one, or takes a
                                      // directory's of which none is known
  std::optional<std::uint64_t> seed;  // that run's, where it is known
  std::vector<int> stale_memory;      // ranks of hosts that came later, with memory of another run,
                                      // which is to be forgotten
};

// Error(kInvalid), with what to do, when something is there that is not this job's.
Ownership find_ownership(const JobStart& start, const FoundStates& found);

}  // namespace paceline::train
