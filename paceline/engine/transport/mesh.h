#pragma once

// The connections of one rank to all other ranks of a group, over a *wire* (wire.h): per peer a
// *control* channel (lifeline and abort notices), a *data* channel (collectives between ranks that
// share no memory; descriptors of memory between ranks that do) and a *point-to-point* channel
// (send, recv). The ranks of one host, *neighbours*, also share memory.
//
// Death: the kernel closes the sockets of a dead process, so a peer's death shows as the end of its
// control channel, even if data travels through shared memory. A waiting rank calls
// throw_if_failed() every few milliseconds; no thread watches. A rank that leaves cleanly says
// goodbye first (in the destructor); its exit is an error only for ranks that still wait for it. A
// host that vanishes closes nothing: its kernel is probed once a second, and a control socket over
// TCP ends after kSilenceLimit without an answer.
//
// Failure is final: the first cause (a lost peer, another rank's abort notice, an error of this
// rank) is kept, and every later check throws it. A rank that finds a cause tells all peers before
// it leaves, so that a rank that checks later does not take a survivor's exit for the cause.
//
// A failure of another group to which this rank belongs does not end this group, but the rank tells
// its peers in this group the cause, in case it leaves this group next (FailureDomain).
//
// Blame: a rank that is about to give up asks all others which ranks they wait for
// (control_messages.h), so that it does not blame a rank that is itself waiting.
//
// Thread safety: all methods may be called from any thread; each channel belongs to one executor.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/transport/cipher.h"
#include "paceline/engine/transport/control_messages.h"
#include "paceline/engine/transport/link_options.h"
#include "paceline/engine/transport/shared_memory.h"
#include "paceline/engine/transport/socket_wire.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {

// How to reach one rank; each rank publishes its own address in the store.
struct PeerAddress {
  std::string host;       // host_token(), followed by "/" and LinkOptions::host if that is set
  std::string process;    // process_token()
  std::string host_name;  // names the host in messages
  // an abstract Unix socket, a new one for each attempt to form the group
  std::string unix_name;
  // An empty host means that the rank does not listen on TCP.
  Endpoint tcp;
  // The best cipher that the rank supports; kNone if the rank does not encrypt.
  CipherKind cipher = CipherKind::kNone;
  TransportKind transport{};  // the transport that the user chose
  int tcp_streams = 1;        // connections that carry a pair's data over TCP
  std::vector<int> cpus;      // the CPUs on which this rank may run
  // The group as this rank understands it: its members' ranks in the world, in order.
  std::vector<int> members;

  std::string encode() const;
  // Error(kCorrupt) for a text that encode() did not write.
  static PeerAddress decode(const std::string& text);
};

class FailureDomain;

class Mesh {
 public:
  // Requires: `wire` connects this rank with all others. `name` names the group in messages.
  // `members` are its ranks in the world, or empty for the world itself.
  Mesh(std::string name, int rank, std::vector<PeerAddress> peers, std::unique_ptr<Wire> wire,
       std::vector<int> members = {});
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return static_cast<int>(peers_.size()); }
  const std::string& name() const { return name_; }
  const PeerAddress& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  Wire& wire() const { return *wire_; }
  // How many TCP connections carry the data of two ranks that have no better transport; the same
  // for all pairs.
  int tcp_streams() const { return peer(rank_).tcp_streams; }
  // Like Wire::receive(), but throws Error(kCorrupt) if the bytes are not those that `peer` sent,
  // and the errors of throw_if_own().
  ssize_t receive(int peer, Channel channel, std::span<std::byte> into) const;
  // Throws Error(kSystem) if `error`, an errno, means that this rank's own call was at fault, for
  // example a bad address. In that case `peer` is not lost.
  void throw_if_own(int error, int peer, const char* what) const;

  // The ranks of this host, including this one, in ascending order.
  const std::vector<int>& neighbours() const { return neighbours_; }
  // Memory shared with the neighbours; null for the only rank of a host, and with transport tcp.
  SharedMemory* shared_memory() const { return shared_memory_.get(); }
  void set_shared_memory(std::unique_ptr<SharedMemory> memory) {
    shared_memory_ = std::move(memory);
  }

  // True if the ranks of this host outnumber the processors on which they may run: spinning then
  // costs a time slice.
  bool oversubscribed() const { return oversubscribed_; }

  // Throws the group's failure, if there is one: kPeerLost, which names the rank that died,
  // kAborted with another rank's cause, or the cause passed to abort(). Returns the peers that have
  // left cleanly. Everything that they did before leaving is visible to the caller now; anything
  // that the caller still misses from one of them after this call will never arrive.
  std::vector<int> throw_if_failed();
  // For a caller that waits for `peer` in vain, because the peer left or a connection to it broke.
  // Throws the known cause or, if none arrives within a second, kPeerLost naming `peer`.
  [[noreturn]] void throw_lost(int peer, const std::string& how);
  // Records `cause` as this group's failure and tells all peers. Does nothing after a failure.
  void abort(const Error& cause);
  // Joins the domain until the mesh is destroyed. Call at most once, before other threads use the
  // mesh.
  void join(std::shared_ptr<FailureDomain> domain);
  // Tells all peers why this rank may leave the group soon, in a clause that peers repeat in their
  // errors if it leaves. Does nothing after the first call, and once this group has failed.
  void foretell(const std::string& why);
  // Whether the failure is already known, so that throw_if_failed() would throw without reading the
  // channels. Costs one load.
  bool failed() const { return has_failed_->load(std::memory_order_relaxed); }
  // The flag that failed() reads; it outlives the mesh.
  std::shared_ptr<const std::atomic<bool>> failure_flag() const { return has_failed_; }
  // Asks all peers which ranks they wait for, and forgets their earlier answers.
  void ask_peers();
  // A peer's answer to ask_peers(). If it stays empty, the peer is not waiting in this group.
  std::optional<std::vector<Awaited>> answer_of(int peer) const;
  // For a waiting thread, between its waits: is_asked() returns whether a peer has asked, and costs
  // one load; answer() tells the peers that have asked which ranks this rank waits for.
  bool is_asked() const { return is_asked_.load(std::memory_order_relaxed); }
  void answer(std::span<const Awaited> awaited);
  // Messages name ranks by self(), name_of() and describe() (with host); in_world(): world ranks.
  const std::string& self() const { return self_; }
  const std::vector<int>& members() const { return members_; }
  int in_world(int rank) const;
  std::vector<int> in_world(std::vector<int> ranks) const;
  std::string name_of(int rank) const;
  std::string describe(int rank) const;

 private:
  void say_to(int peer, std::string_view words, Deadline deadline);  // requires mutex_
  void send_to_all(const std::string& notice);                       // requires mutex_
  void poll_control();                                               // requires mutex_
  std::vector<Interest> control_interests() const;                   // requires mutex_
  void hear(std::span<const Interest> interests);                    // requires mutex_
  // Reads a control channel; returns how the connection ended, or an empty text. Requires mutex_.
  std::string read_control(int peer);
  void take_notice(int peer, const std::string& bytes);  // requires mutex_
  void set_failure(Error failure);                       // requires mutex_
  void fail_and_tell(Error cause);                       // requires mutex_
  bool has_left(int peer) const;                         // requires mutex_
  Error lost(int peer, const std::string& how) const;    // requires mutex_
  [[noreturn]] void throw_failure(std::unique_lock<std::mutex> lock);
  std::vector<int> find_neighbours() const;
  bool count_oversubscription() const;

  const std::string name_;
  const int rank_;
  const std::vector<int> members_;
  const std::string self_;
  const std::vector<PeerAddress> peers_;
  const std::unique_ptr<Wire> wire_;
  const std::vector<int> neighbours_;
  const bool oversubscribed_;
  const OwnerProcess owner_;
  std::unique_ptr<SharedMemory> shared_memory_;
  std::shared_ptr<FailureDomain> domain_;

  const std::shared_ptr<std::atomic<bool>> has_failed_ = std::make_shared<std::atomic<bool>>(false);
  std::atomic<bool> is_asked_{false};
  mutable std::mutex mutex_;  // guards the members below, and reading the control channels
  std::optional<Error> failure_;
  bool told_domain_ = false;  // the domain has been told of the failure
  bool foretold_ = false;
  std::vector<int> left_;  // peers that said goodbye
  Inquiry inquiry_;
  // Bytes of control messages still to be sent to each peer; may begin in the middle of a message.
  std::vector<std::string> unsent_;
};

// The groups of a rank that were made from one another. When one group fails, the rank tells its
// peers in the other groups the cause. If the rank then leaves those groups as well, the peers
// report that cause; they do not blame this rank, whose exit is only a consequence. The other
// groups continue; how to react to the failure is the program's decision.
//
// Thread safety: every method may be called from any thread, but not by a thread that holds a lock
// of a mesh.
class FailureDomain {
 public:
  // Adds a mesh. Until remove(), it is informed of failures of the other meshes.
  void add(Mesh& mesh) {
    const std::lock_guard lock(mutex_);
    meshes_.push_back(&mesh);
  }
  void remove(Mesh& mesh) {
    const std::lock_guard lock(mutex_);
    std::erase(meshes_, &mesh);
  }
  // Tells all other meshes that `failed` has failed, with this cause.
  void tell(const Mesh& failed, const std::string& cause) {
    const std::lock_guard lock(mutex_);
    for (Mesh* mesh : meshes_) {
      if (mesh != &failed) mesh->foretell("another group had failed there: " + cause);
    }
  }

 private:
  std::mutex mutex_;  // guards meshes_, and keeps each mesh alive while it is told
  std::vector<Mesh*> meshes_;
};

// Advice at the end of an error's text if another rank is the cause; it follows a semicolon.
inline constexpr const char* kAdviceForLate =
    "see the output of the late rank; if it is only slow, raise the timeout "
    "(GroupOptions::timeout, "
    "CollectiveOptions::timeout)";

}  // namespace paceline
