#pragma once

// What ranks that ended with exit code 0 leave running: a program that went into the background,
// whose job must not be taken for one that succeeded. It is ended with the job; this says so.
//
// Helpers of a rank notice its end a moment later than the launcher, so those that are on their way
// out are given half a second, once for all ranks of a generation.
//
// Requires: this process adopts orphans (launcher/process/descendants.h).
//
// Thread safety: none.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"

namespace paceline::launcher {

class Leftovers {
 public:
  // Of this rank, whose process has ended but not been waited for, in its process group; nothing
  // when it failed.
  void look_at_group(int rank, pid_t process);
  // What left the ranks' groups, once all ranks are gone: everything but `spared`.
  void look_for_strays(const std::vector<pid_t>& spared);
  // A line for each rank that left something; "" when none did.
  std::string text() const;

 private:
  struct Left {
    int count = 0;
    std::string first;  // its name
  };

  template <class Belongs>
  std::vector<pid_t> staying(Belongs belongs);
  void add(int rank, pid_t process);

  std::optional<Deadline> patience_;
  std::map<int, Left> by_rank_;  // -1: it is not known whose
  std::set<pid_t> known_;        // counted; they are being ended
};

}  // namespace paceline::launcher
