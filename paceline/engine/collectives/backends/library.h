#pragma once

// A third-party communication library (Gloo, MPI, oneCCL, NCCL) that moves the data of a group's
// collectives. What it does differently, or not at all, Paceline's engine does beside it
// (connect_backend.h): ranks meet, compare their calls, notice deaths, send messages.
//
// A library is a folder NAME/ with NAME_library.cpp, compiled where the library was found
// (cmake/PacelineBackends.cmake), two declarations in library_list.h and an entry in
// library_list.cpp. Behind the interface stand the parts that several libraries need.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
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

// What every library's leaf asks about a call, and about an error's text. Thread safety: pure.

// The bytes of `count` elements: of the whole buffer, or of one rank's block of it.
inline std::size_t bytes_of(const Collective& call) { return call.count * size_of(call.dtype); }

// Where rank's block begins in a buffer that holds one of each; null stays null.
template <class Byte>
Byte* block_of(Byte* data, const Collective& call, int rank) {
  return data == nullptr ? nullptr : data + static_cast<std::size_t>(rank) * bytes_of(call);
}

// The time that is left, at least 1 ms: libraries take 0 for "no limit".
std::chrono::milliseconds timeout_of(Deadline deadline);

// Libraries have one class of exceptions for all that happens to a connection; the text tells them
// apart: kTimeout, kPeerLost for one that ended, otherwise kSystem.
ErrorCode code_of_text(std::string_view text);

// The division that turns a sum into a mean, for libraries that only add up.

// After a reduction whose library has added up: divides the result, in place, where this rank has
// one and a mean was asked for. Thread safety: pure.
void finish_mean(const Collective& call, int rank, int world_size);

// Reductions that a library lacks, or does otherwise than Paceline promises (NaN wins in min and
// max): the library moves every rank's contribution, Paceline's kernel combines them. Each element
// is combined in the engine's order, so its bits are the engine's. The price is memory for
// world_size contributions, and as many times the traffic.

// Carries out an all_reduce, a reduce or a reduce_scatter. `move` is called once, on every rank,
// with the call that brings the contributions: an all_gather or an all_to_all into `contributions`.
// That is the caller's because after an error of `move` the library may still write to it.
// Thread safety: none of its own; `move` is called in the calling thread.
void reduce_contributions(const Collective& call, int rank, int world_size,
                          std::vector<std::byte>& contributions,
                          const std::function<void(const Collective& moved)>& move);

// The wait of a library's ranks for each other's keys, while they connect.

// Until all are there, a peer dies (the mesh's error) or the deadline passes: Error(kTimeout) that
// says that a rank did not arrive to connect with `library`.
void wait_for_keys(Store& store, const std::vector<std::string>& keys, Mesh& mesh,
                   Deadline deadline, const std::string& library);

// What a library's ranks need to find each other, from rank 0 to all: NCCL's id, oneCCL's address.

// Collective. Rank 0 gives `id`, the others' are filled; all have the same size. Errors: those of
// wait_for_keys(), and kCorrupt for an id of another size, which another version of the library
// has.
void share_id(const LibraryContext& context, std::span<char> id, const std::string& library);

}  // namespace paceline
