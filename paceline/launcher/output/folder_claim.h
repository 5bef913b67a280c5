#pragma once

// A job's claim on the folder into which its launchers write, so that two jobs that run at the same
// time do not write into the same files. The launchers of one job, on whichever host, share it; it
// ends with the last of their processes, however that ends.
//
// A lock (flock) on the file ".paceline.lock" in the folder, which names the job; the last one that
// releases it removes it. On a file system without locks nothing is claimed and everybody is let
// in.

#include <string>

#include "paceline/engine/core/fd.h"

namespace paceline::launcher {

inline constexpr const char* kClaimFile = ".paceline.lock";

struct FolderClaim {
  Fd lock;              // keeps the claim; empty: there is none
  std::string holder;   // the job that has the folder instead
  std::string problem;  // why nothing can be written there
};

// For `job`, which all its launchers name alike, and no other job does. Waits at most a second, for
// others that are claiming it at this moment.
FolderClaim claim_folder(const std::string& folder, const std::string& job);
void release_folder(const std::string& folder, Fd lock);

}  // namespace paceline::launcher
