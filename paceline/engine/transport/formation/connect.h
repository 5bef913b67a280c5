#pragma once

// Builds the mesh of a group: every rank publishes its address in the store, connects to the lower
// ranks and accepts the higher ones. Ranks of one host meet over Unix sockets and share memory;
// others over TCP. Ranks that are all threads of one process meet in its memory, without sockets
// (with kLoopback they never open one; with kAuto they listen until they know that they share a
// process). Whether ranks share a host or a process is read from the kernel (boot id, network
// namespace, process), never from a launcher's variables; only an option can separate ranks of one
// host.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/transport/link_options.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

struct ConnectOptions {
  std::string name = "world";  // the group's name
  int rank = 0;
  int world_size = 1;
  // The members' ranks in the world, the same on every rank; empty for the world.
  std::vector<int> members;
  int generation = 0;
  std::string address = "127.0.0.1";  // where this rank listens for TCP
  LinkOptions link;
  std::chrono::milliseconds timeout{300'000};

  // How ranks exchange addresses: `publish` stores a value under this rank's key; `fetch` returns
  // the values of ranks, or throws Error(kTimeout) when some are still missing after `wait`.
  std::function<void(const std::string& value)> publish;
  std::function<std::vector<std::string>(const std::vector<int>& ranks,
                                         std::chrono::milliseconds wait)>
      fetch;
  // How a rank that gives up informs the ranks that it is not connected to or cannot reach. On the
  // other ranks, which check once a second, `given_up` returns the first text that any rank passed
  // to `give_up`. It returns an empty text if no rank has given up within `wait`, or if it cannot
  // find out soon. Neither function throws an Error. Both may be left out.
  std::function<void(const std::string& notice)> give_up;
  std::function<std::string(std::chrono::milliseconds wait)> given_up;
  // For a subgroup: checks the parent, the group from which the subgroup was split. Called about
  // once a second, or more often, while ranks are missing. Throws the parent's failure; returns the
  // subgroup's ranks that have left the parent cleanly. May be left out.
  std::function<std::vector<int>()> look_after_parent;

  int in_world(int member) const {
    return members.empty() ? member : members[static_cast<std::size_t>(member)];
  }
  std::vector<int> in_world(std::vector<int> ranks) const {
    for (int& rank : ranks) rank = in_world(rank);
    return ranks;
  }
  // The names of a member and of this rank in messages.
  std::string name_of(int member) const { return rank_name(member, in_world(member)); }
  std::string self() const { return name_of(rank); }
};

// Connects the ranks; warns after 10 s which ranks are missing. Error(kInvalid) if the ranks name
// different members, chose different transports or numbers of streams, or only some of them
// encrypt, and if `link.transport` (shm, loopback) cannot connect these ranks. Error(kTimeout)
// names the ranks that did not arrive. Error(kUnsupported) if `link.transport` is not available, or
// cannot be encrypted although `link.encrypt` is set.
std::unique_ptr<Mesh> connect_mesh(const ConnectOptions& options, const Secret& secret);

}  // namespace paceline
