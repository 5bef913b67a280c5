#pragma once

// A third-party communication library (Gloo, MPI, oneCCL, NCCL) that moves the data of a group's
// collectives. What it does differently, or not at all, Paceline's engine does beside it
// (library_backend.h): ranks meet, compare their calls, notice deaths, send messages.
//
// A leaf is a folder with NAME_library.h and NAME_library.cpp, which is compiled where the library
// was found (cmake/PacelineBackends.cmake), and an entry in library_list.cpp.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/store/store.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

class Library {
 public:
  virtual ~Library() = default;

  // How bytes travel: "tcp", "mpi", ...
  virtual const char* transport() const = 0;
  virtual bool supports(Op op, Dtype dtype, ReduceOp reduce_op) const = 0;

  // Blocks until this rank's part is done. Calls come one at a time, and only once every rank of
  // the group has made the same one; count is at least 1. Errors: kTimeout at the deadline,
  // kPeerLost for a broken connection, kSystem for anything else. After an error only abort() is
  // called.
  //
  // A library of a device keeps the call's place: its stream waits for call.order, and once it has
  // been given everything call.work, where there is one, gets an event of its end (Work::queue).
  virtual void run(const Collective& call, std::uint32_t sequence, Deadline deadline) = 0;

  // From any thread: ends a run() under way here as soon as the library lets it, and on the ranks
  // that wait for this one.
  virtual void abort() = 0;
};

// What a library gets to connect the ranks of a group.
struct LibraryContext {
  std::string group;  // its name, for messages
  int rank = 0;
  std::vector<int> world_ranks;  // of the group's members in the job
  LaunchEnvironment who;
  std::string address;           // of the interface on which the others reach this rank
  std::shared_ptr<Store> store;  // with keys of this group alone
  Mesh& mesh;                    // outlives the library; tells of peers that die meanwhile
  Deadline deadline;
  // A collective of the engine's, within a call or while all connect: true when every rank says
  // `mine`. Usable as long as the mesh.
  std::function<bool(bool mine, Deadline deadline)> agree;

  int world_size() const { return static_cast<int>(world_ranks.size()); }
  const std::string& self() const { return mesh.self(); }  // for messages
};

}  // namespace paceline
