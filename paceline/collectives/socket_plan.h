#pragma once

// Whether the ranks of a group in shared memory add up per socket first (algorithms/by_socket.h).
// Pure functions of what all ranks agree on, so that all choose alike. Thread safety: pure.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/collectives/planner.h"
#include "paceline/collectives/schedule.h"

namespace paceline {

// Where the ranks' sockets allow it. kAuto: for at least 1 MiB, and where it at least halves what
// crosses between sockets. Both bounds are estimates: no machine with two sockets was at hand, so
// whether and from which size it is faster was not measured.
enum class BySocket : std::uint8_t { kAuto, kNever, kAlways };

// "auto", "never", "always"; Error(kInvalid) names the value otherwise.
BySocket parse_by_socket(const std::string& name);
std::string_view name_of(BySocket choice);

class SocketPlan {
 public:
  static constexpr int kUnknown = -1;

  // `socket_of`: each rank's socket, kUnknown where it may run on several or nobody knows.
  // `members` are the ranks in the world, for messages; none: it is the world.
  SocketPlan(const std::vector<int>& socket_of, BySocket choice,
             const std::vector<int>& members = {});

  // Whether there is a way by socket: all sockets are known, there are several, and each has a
  // power of two of neighbouring ranks, at least two, and all the same number.
  bool is_possible() const { return why_not_.empty(); }
  // In place of hosts. Requires: is_possible().
  const Hosts& sockets() const { return sockets_; }
  // For calls that a staging area does not hold anyway; tiny ones are never asked about.
  bool chooses(const PlanRequest& request) const;
  // Why, for people; empty where sockets make no difference.
  std::string explain(const PlanRequest& request) const;

 private:
  std::string why_not(const std::vector<int>& socket_of, const std::vector<int>& members) const;

  Hosts sockets_;
  BySocket choice_;
  std::string why_not_;
};

}  // namespace paceline
