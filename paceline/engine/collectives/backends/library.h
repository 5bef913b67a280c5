#pragma once

// A third-party communication library (Gloo, MPI, oneCCL, NCCL) that moves the data of a group's
// collectives. Paceline's engine adds features that libraries lack or provide in different ways
// (connect_backend.h): it lets ranks meet, compare their calls, notice deaths and send messages.
//
// A new library needs a folder NAME/ with NAME_library.cpp, which is compiled if the library was
// found (cmake/PacelineBackends.cmake), two declarations in library_list.h and an entry in
// library_list.cpp. nccl_library.cpp is always compiled, because NCCL is loaded at run time. After
// the interface below come functions that several libraries need.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/collectives/work.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/store/store.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

struct PointToPointCall;

class Library {
 public:
  virtual ~Library() = default;

  // The transport of bytes: "tcp", "mpi", ...
  virtual const char* transport() const = 0;
  virtual bool supports(Op op, Dtype dtype, ReduceOp reduce_op) const = 0;
  // Whether run() takes coalesced calls (Collective::parts).
  virtual bool takes_parts() const { return false; }
  // Whether the library takes messages between two ranks (start()).
  virtual bool takes_messages() const { return false; }
  // Starts a send or a receive of elements in the device's memory; may be called from any thread at
  // any time. The message is ordered among the device's work like a call of run(). The engine first
  // matches the two ends of the message (LibraryContext::announce). Errors: kUnsupported unless
  // takes_messages(), kInvalid for a buffer that the library cannot use, and the group's failure.
  virtual WorkPtr start(Op op, const PointToPointCall& call, Deadline deadline);
  // Throws Error(kInvalid) if the library cannot use the buffers of this rank's call. Called before
  // the ranks meet for the call, so the group can continue.
  virtual void require_usable(const Collective& /*call*/) const {}

  // Blocks until this rank's part is done. Calls come one at a time, and only after every rank of
  // the group has made the same call; count is at least 1. Errors: the group's failure, kTimeout at
  // the deadline, kPeerLost for a broken connection, kUnsupported for a call that the library
  // cannot carry out, otherwise kSystem. After an error, run() is not called again.
  //
  // A library for a device orders the call among the device's other work: the library's stream
  // waits for call.order. Once the whole call has been queued on the device, call.work, if not
  // null, gets an event that marks the end of the call (Work::queue). run() may then return while
  // the library watches the event: the library completes the Work when the device has finished, and
  // reports errors through LibraryContext::fail_group. The destructor waits for watched calls.
  virtual void run(const Collective& call, std::uint32_t sequence, Deadline deadline) = 0;

  // May be called from any thread. Ends a run() under way as soon as the library allows it, on this
  // rank and on the ranks that wait for this one.
  virtual void abort() = 0;
};

// The information with which a library connects the ranks of a group.
struct LibraryContext {
  std::string group;  // the group's name, for error texts
  int rank = 0;
  std::vector<int> world_ranks;  // the members' ranks in the job
  LaunchEnvironment environment;
  std::string address;           // the address at which the other ranks reach this rank
  std::shared_ptr<Store> store;  // holds the keys of this group only
  Mesh& mesh;                    // outlives the library; reports dead peers
  Deadline deadline;
  // A collective of the engine, for use within a call or while all ranks connect: returns true if
  // `mine` is true on every rank. Valid as long as the mesh.
  std::function<bool(bool mine, Deadline deadline)> agree;
  // A collective of the engine, for use once, while all ranks connect: returns the texts that
  // `tell` returns on the ranks, in rank order; each has at most 500 bytes. If `tell` throws on a
  // rank, every rank throws that error, with the rank's name.
  std::function<std::vector<std::string>(const std::function<std::string()>& tell)> tell_all;
  // Sends a message of the engine, or receives one. For a message on a device the engine moves only
  // PointToPointCall::announcement_bytes, but compares type, count and shape of both ends. Valid as
  // long as the mesh.
  std::function<WorkPtr(Op op, const PointToPointCall& call, Deadline deadline)> announce;
  // Fails the group because of an error outside of run(), from any thread, and returns the error
  // that the group's calls report: another rank's error, if that rank failed first. Valid as long
  // as the mesh.
  std::function<Error(const Error& error)> fail_group;

  int world_size() const { return static_cast<int>(world_ranks.size()); }
  const std::string& self() const { return mesh.self(); }  // for error texts
};

// Functions for all libraries. Thread safety: any thread may call them; they keep no state.

// The size of call.count elements in bytes: of the whole buffer, or of one rank's block of it.
inline std::size_t bytes_of(const Collective& call) { return call.count * size_of(call.dtype); }

// The beginning of a rank's block in a buffer that holds one block for each rank; null stays null.
template <class Byte>
Byte* block_of(Byte* data, const Collective& call, int rank) {
  return data == nullptr ? nullptr : data + static_cast<std::size_t>(rank) * bytes_of(call);
}

// The remaining time, at least 1 ms, because for libraries 0 means "no limit".
std::chrono::milliseconds timeout_of(Deadline deadline);

// The code of a library's error, derived from the error's text, because libraries have one
// exception class for all errors of connections: kTimeout, kPeerLost for a connection that ended,
// otherwise kSystem.
ErrorCode code_of_text(std::string_view text);

// Turns a sum into a mean, for libraries that have only sums. Call this after the library has
// carried out `call`: if `call` asks for a mean and this rank has a result, divides the result in
// place; otherwise does nothing.
void finish_mean(const Collective& call, int rank, int world_size);

// Reductions that a library lacks, or that differ from Paceline's promises (NaN wins in min and
// max): the library moves every rank's contribution, and Paceline's kernel combines them. Each
// element is combined in the engine's order, so its bits are the engine's. This costs memory for
// world_size contributions, and up to world_size times the traffic.
//
// Carries out an all_reduce, a reduce or a reduce_scatter. `move` is called once, on every rank,
// with the call that moves the contributions: an all_gather or an all_to_all into `contributions`.
// The caller owns this buffer, because after an error of `move` the library may still write to it.
// `move` is called in the calling thread.
void reduce_contributions(const Collective& call, int rank, int world_size,
                          std::vector<std::byte>& contributions,
                          const std::function<void(const Collective& moved)>& move);

// Waits until all keys exist, while a library's ranks connect. Throws the mesh's error if a peer
// dies, and at the deadline Error(kTimeout): a rank did not arrive to connect with `library`.
void wait_for_keys(Store& store, const std::vector<std::string>& keys, Mesh& mesh,
                   Deadline deadline, const std::string& library);

// Collective. Shares the id by which a library's ranks find each other (NCCL's id, oneCCL's
// address): copies rank 0's `id` to all other ranks. Requires: `id` has the size that this rank's
// library uses. Errors: those of wait_for_keys(); kCorrupt if rank 0's id has another size, because
// rank 0 uses another version of the library.
void share_id(const LibraryContext& context, std::span<char> id, const std::string& library);

}  // namespace paceline
