#pragma once

// Whether the state that a starting job finds is its own to go on with. The newest step alone does
// not say so: a directory, or a memory that the user named, may hold an older job's.
//
//   a first start               needs places without any state: what is there is somebody's
//   a first start that resumes  continues the run of the directory, or without one that of the
//                               newest memory
//   a restart by the launcher   continues the run that its own job began, or begins it
//
// Pure: all ranks come to the same answer from the same facts.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paceline/checkpoint/run_mark.h"

namespace paceline::train {

// What is in one place.
struct FoundState {
  std::optional<std::int64_t> step;  // the newest; nothing: no state
  std::optional<RunMark> mark;       // whose it is, where that is said
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
};

struct Ownership {
  std::string run;                // that the job continues; empty: it begins one, or takes an
                                  // unmarked directory's
  std::vector<int> stale_memory;  // ranks of hosts that came later, with memory of another run,
                                  // which is to be forgotten
};

// Error(kInvalid), with what to do, when something is there that is not this job's.
Ownership find_ownership(const JobStart& start, const FoundStates& found);

}  // namespace paceline::train
