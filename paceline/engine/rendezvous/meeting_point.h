#pragma once

// The place where the ranks of a job meet, and the notice by which the ranks of one host find each
// other when no launcher names a place.

#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/rendezvous/launch_environment.h"

namespace paceline {

struct MeetingPoint {
  enum class Kind {
    kLauncher,  // the launcher's store at `endpoint`
    kRankZero,  // rank 0 hosts a store at `endpoint`
    kNotice,    // rank 0 hosts a store at a free loopback port and leaves a notice named
                // `job`
    kFile,      // a store in the file `path`
  };
  Kind kind = Kind::kRankZero;
  Endpoint endpoint;
  std::string job;
  std::string path;
};

// Finds where the ranks meet, from the init method, the launch environment and the launcher's
// variables, without I/O; docs/launching.md has the table. Throws Error(kInvalid) when they name no
// place or an invalid one; the message shows how to name a place.
MeetingPoint find_meeting_point(const std::string& init_method,
                                const LaunchEnvironment& environment, const GetVariable& variable);

// The content of a notice. The notice may be left over from a job that was killed, so a reader that
// finds no store at its endpoint must read the notice again.
struct JobNotice {
  Endpoint endpoint;
  Secret secret;
};

// A private directory (a "board") in which rank 0 leaves a file with its store's address and the
// job's secret; the other ranks of this host find the file by the job's name. Only the user can
// enter the directory, and the file (0600) is never visible half-written.
//
// There are two boards, $XDG_RUNTIME_DIR/paceline and /tmp/paceline-<uid>. Rank 0 uses the first
// board that it can write to; the other ranks look at both boards and take the newer notice.
class Bulletin {
 public:
  // Throws Error(kInvalid) when a board belongs to another user or other users may enter it.
  Bulletin(const GetVariable& variable, const std::string& job);

  // Makes the board if it is missing, and replaces the notice of an earlier job of this name. Logs
  // the reason if the first board cannot be used. Throws Error(kSystem) if no board can be written.
  void publish(const Endpoint& endpoint, const Secret& secret);
  // Returns the notice; nullopt when there is none yet.
  std::optional<JobNotice> read() const;
  void remove() const noexcept;

  // The path of the published notice; before that, the path that rank 0 tries first.
  const std::string& path() const { return path_; }

 private:
  std::vector<std::string> places_;  // the paths of the notice, one on each board
  std::string problem_;              // why the board in XDG_RUNTIME_DIR is not used
  std::string path_;
};

}  // namespace paceline
