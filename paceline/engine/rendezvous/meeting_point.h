#pragma once

// Where do the ranks meet? And the notice by which the ranks of one host find each other where no
// launcher says where.

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
    kNotice,    // rank 0 hosts a store at any free port of the loopback and leaves a notice named
                // `job`
    kFile,      // a store in the file `path`
  };
  Kind kind = Kind::kRankZero;
  Endpoint endpoint;
  std::string job;
  std::string path;
};

// Decided from the init method, the launch environment and the launcher's variables alone, without
// any I/O; docs/launchers.md has the table. Error(kInvalid) when the environment does not say
// where, with the command that would.
MeetingPoint find_meeting_point(const std::string& init_method, const LaunchEnvironment& who,
                                const GetVariable& variable);

// What rank 0 tells the other ranks of its host. It may be left over from a job that was killed: a
// reader must be ready to find no store there, and read again.
struct JobNotice {
  Endpoint endpoint;
  Secret secret;
};

// A private directory (a "board") in which rank 0 leaves a file with its store's address and the
// job's secret; the other ranks of this host find it by the job's name. Only the user can enter the
// directory, and the file (0600) appears whole.
//
// There are two boards, $XDG_RUNTIME_DIR/paceline and /tmp/paceline-<uid>. Rank 0 uses the first
// one that it can write to; the others look at both and take the newer notice.
class Bulletin {
 public:
  // Error(kInvalid) when a board is not the user's own or others may enter it.
  Bulletin(const GetVariable& variable, const std::string& job);

  // Makes the board where it is missing, and replaces what an earlier job of this name left. Logs
  // why the first board could not be used. Error(kSystem) when no board can be written.
  void publish(const Endpoint& endpoint, const Secret& secret);
  // The notice; nothing when there is none yet.
  std::optional<JobNotice> read() const;
  void remove() const noexcept;

  // The path of the published notice; before that, where rank 0 tries first.
  const std::string& path() const { return path_; }

 private:
  std::vector<std::string> places_;  // of the notice, one on each board
  std::string problem_;              // why the first board is not XDG_RUNTIME_DIR's
  std::string path_;
};

}  // namespace paceline
