#pragma once

// Decides whose state a starting job may continue.
//
// Thread safety: pure functions.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paceline/files/checkpoint/checkpoint_directory.h"

namespace paceline::train {

// The origin of the newest checkpoint in a directory, as far as it can be read.
struct FoundOrigin {
  std::int64_t step = 0;
  std::string run;  // empty: unknown
  std::optional<std::uint64_t> seed;
};

// The state in a directory, or in the memory of a rank.
struct FoundState {
  std::optional<std::int64_t> step;        // the newest step; nullopt: there is no state
  std::optional<RunMark> mark;             // the run to which it belongs, if that is known
  std::optional<FoundOrigin> newest = {};  // only in a directory
};

struct FoundStates {
  std::string directory;  // the path, for messages
  FoundState on_disk;
  std::vector<FoundState> in_memory;  // [rank]; set only for the first rank of a memory
};

struct JobStart {
  std::string job;         // the launcher's name for the job
  bool restarted = false;  // the launcher restarted the job after a failure
  bool resume = false;     // the user asked to continue a run
  bool other_run = false;  // continue the newest checkpoint even if it belongs to another run
};

struct Ownership {
  std::string run;  // the run to continue; empty: a new run, or that of an unmarked directory
  std::optional<std::uint64_t> seed;  // the seed of that run, if it is known
  std::vector<int> stale_memory;      // ranks whose memory holds another run, because their hosts
                                      // joined later; they must discard it
};

// Decides whether a starting job may continue the state that it finds. The newest step alone does
// not show that, because a directory, or a memory that the user named, may hold the state of an
// older job.
//
//   a first start               requires that there is no state: it would belong to another job
//   a first start that resumes  continues the run of the directory, or, without one, the run of the
//                               newest memory; refuses a newest checkpoint of another run, unless
//                               `other_run` is set
//   a restart by the launcher   continues the run that its own job began, or begins one
//
// Error(kInvalid), with advice, when the state does not belong to this job. Pure: all ranks make
// the same decision from the same facts.
Ownership find_ownership(const JobStart& start, const FoundStates& found);

}  // namespace paceline::train
