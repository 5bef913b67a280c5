#pragma once

// A notice board between the processes of one user on one host: rank 0 leaves where its store is
// and the job's secret, the others find it by the job's name. The board is a directory that only
// the user can enter ($XDG_RUNTIME_DIR/paceline, else /tmp/paceline-<uid>), a notice is a 0600 file
// that appears whole.
//
// A notice may be left over from a job that was killed: a reader must be ready to find no one,
// and read again.

#include <optional>
#include <string>

#include "paceline/core/secret.h"
#include "paceline/core/socket.h"
#include "paceline/rendezvous/launch_environment.h"

namespace paceline {

struct JobNotice {
  Endpoint endpoint;
  Secret secret;
};

class Bulletin {
 public:
  // Makes the directory where it is missing. Error(kInvalid) when it is not the user's own or
  // others may enter it.
  Bulletin(const GetVariable& variable, const std::string& job);

  // Replaces what an earlier job of this name left.
  void publish(const Endpoint& endpoint, const Secret& secret) const;
  // Nothing when there is none yet.
  std::optional<JobNotice> read() const;
  void remove() const noexcept;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace paceline
