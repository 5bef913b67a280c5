#pragma once

// Where do the ranks meet? Decided from the init method, the launch environment and the launcher's
// variables alone, without any I/O; docs/launchers.md has the table.

#include <optional>
#include <string>

#include "paceline/engine/core/socket.h"
#include "paceline/engine/rendezvous/launch_environment.h"

namespace paceline {

struct MeetingPoint {
  enum class Kind {
    kLauncher,  // the launcher's store at `endpoint`
    kRankZero,  // rank 0 hosts a store at `endpoint`
    kNotice,    // rank 0 hosts a store at any free port of the loopback and leaves a notice named
                // `job`
    kFile,      // a store in the file `path`
  };
  Kind kind = Kind::kRankZero;
  Endpoint endpoint;
  std::string job;
  std::string path;
};

// Error(kInvalid) when the environment does not say where, with the command that would.
MeetingPoint find_meeting_point(const std::string& init_method, const LaunchEnvironment& who,
                                const GetVariable& variable);

}  // namespace paceline
