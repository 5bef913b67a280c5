#pragma once

// The connections of one rank to all other ranks of a group, over a *wire* (wire.h): per peer a
// *control* channel (lifeline and abort notices), a *data* channel (collectives between ranks that
// share no memory; descriptors of memory where they do) and a *point-to-point* channel (send,
// recv). Ranks of one host, its *neighbours*, also share memory.
//
// Death: the kernel closes the sockets of a dead process, so a peer's death shows as the end of its
// control channel, in shared memory too. A rank that waits calls throw_if_failed() between its
// waits (every few milliseconds); no thread watches. A rank that leaves in order says so first (the
// destructor does), and is missed only by ranks that still wait for it. A host that vanishes closes
// nothing: its kernel is asked once a second, and a control socket over TCP ends when there was no
// answer for kSilenceLimit.
//
// Failure is final: the first cause (a lost peer, another rank's abort notice, an own error) is
// kept and thrown ever after. A rank that finds a cause tells all peers before it leaves, so that a
// rank that looks later does not take a survivor's end for the cause.
//
// Other groups of the same ranks that fail do not end this one, but their cause is told to the
// peers in case this rank leaves next (FailureDomain).
//
// Blame: a rank that is about to give up asks all others which ranks they wait for
// (control_messages.h), so that it does not name one that waits like itself.
//
// Thread safety: all methods may be called from any thread; the channels belong to one executor
// each.

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

// How one rank can be reached; each rank publishes its own in the store.
struct PeerAddress {
  std::string host;                       // engine/core/system/host.h: host_token()
  std::string process;                    // process_token()
  std::string host_name;                  // for messages
  std::string unix_name;                  // abstract Unix socket; another for each attempt to form
  Endpoint tcp;                           // empty host: no listener at all
  CipherKind cipher = CipherKind::kNone;  // the best it can do, if it encrypts
  TransportKind transport{};              // as it was chosen
  int tcp_streams = 1;                    // that carry a pair's data over TCP
  std::vector<int> cpus;                  // where this rank may run
  // The group as this rank understands it: its members' ranks in the world, in order.
  std::vector<int> members;

  std::string encode() const;
  // Error(kCorrupt) for anything encode() does not make.
  static PeerAddress decode(const std::string& text);
};

class FailureDomain;

class Mesh {
 public:
  // Requires: `wire` connects this rank with all others. `name` is the group's, for messages;
  // `members` are its ranks in the world, none where it is the world.
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
  // How many TCP connections carry the data of two ranks that have no better way: the group's.
  int tcp_streams() const { return peer(rank_).tcp_streams; }
  // As Wire::receive(), but Error(kCorrupt) for bytes that `peer` did not send so, and what
  // throw_if_own() throws.
  ssize_t receive(int peer, Channel channel, std::span<std::byte> into) const;
  // Error(kSystem) when `error`, an errno, says that this rank's call was at fault, such as an
  // address without memory: then `peer` is not lost.
  void throw_if_own(int error, int peer, const char* what) const;

  // The ranks of this host, this one among them, ascending.
  const std::vector<int>& neighbours() const { return neighbours_; }
  // Among the neighbours; null when they cannot map each other's memory.
  SharedMemory* shared_memory() const { return shared_memory_.get(); }
  void set_shared_memory(std::unique_ptr<SharedMemory> memory) {
    shared_memory_ = std::move(memory);
  }

  // True when more ranks of this host compete for processors than it gives them: spinning then
  // costs a time slice.
  bool oversubscribed() const { return oversubscribed_; }

  // Throws the group's failure, if there is one: kPeerLost naming the rank that died, or what
  // another rank's abort notice said. Returns the peers that have left in order. What they did
  // before is visible to the caller *now*: only a caller that still misses something from one of
  // them after this call has lost it.
  std::vector<int> throw_if_failed();
  // For a caller that waits for `peer` without success, because it left or because a connection to
  // it broke: throws what is known of the cause, and kPeerLost naming `peer` when nothing is.
  [[noreturn]] void throw_lost(int peer, const std::string& how);
  // Records `cause` as this group's failure and tells all peers. The first cause stays.
  void abort(const Error& cause);
  // Belongs to the domain until it goes. Call at most once, before other threads use it.
  void join(std::shared_ptr<FailureDomain> domain);
  // Tells all peers why another group of this rank has failed; the first cause stays. Nothing once
  // this group has failed as well.
  void foretell(const std::string& cause);
  // Costs one load: whether throw_if_failed() would throw without looking at the channels.
  bool failed() const { return has_failed_->load(std::memory_order_relaxed); }
  // The flag that failed() reads; it outlives the mesh.
  std::shared_ptr<const std::atomic<bool>> failure_flag() const { return has_failed_; }
  // Asks all peers which ranks they wait for, and forgets what they answered before.
  void ask_peers();
  // The answer of a peer since then; empty: none, so it does not wait in this group.
  std::optional<std::vector<Awaited>> answer_of(int peer) const;
  // For a thread that waits, between its waits: whether a peer has asked, which costs one load;
  // tells those that have which ranks this one waits for.
  bool is_asked() const { return is_asked_.load(std::memory_order_relaxed); }
  void answer(std::span<const Awaited> awaited);
  // For messages, by rank_name(): this rank, a rank, and a rank with its host.
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
  // Requires: mutex_. Empty, or how the connection has ended.
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
  mutable std::mutex mutex_;  // guards what is below, and reads of the control channels
  std::optional<Error> failure_;
  bool told_domain_ = false;  // of it
  bool foretold_ = false;
  std::vector<int> left_;  // peers that said goodbye
  Inquiry inquiry_;
  std::vector<std::string> unsent_;  // words, by peer; their beginning may have been sent
};

// The groups of a rank that were made of one another. When one of them fails, the peers in the
// others are told why: should this rank leave them next, they name the first cause, and not this
// rank, which only followed. A group whose relative has failed goes on; what its rank makes of the
// failure is the program's business.
//
// Thread safety: every method may be called from any thread, but not by a thread that holds a lock
// of a mesh.
class FailureDomain {
 public:
  // Until remove(), the mesh is told what happens to the others.
  void add(Mesh& mesh) {
    const std::lock_guard lock(mutex_);
    meshes_.push_back(&mesh);
  }
  void remove(Mesh& mesh) {
    const std::lock_guard lock(mutex_);
    std::erase(meshes_, &mesh);
  }
  // `failed` has, with that text.
  void tell(const Mesh& failed, const std::string& cause) {
    const std::lock_guard lock(mutex_);
    for (Mesh* mesh : meshes_) {
      if (mesh != &failed) mesh->foretell(cause);
    }
  }

 private:
  std::mutex mutex_;  // guards meshes_, and keeps each alive while it is told
  std::vector<Mesh*> meshes_;
};

// The end of an error's text whose cause is another rank: what to do, to stand behind a semicolon.
inline constexpr const char* kAdviceForLate =
    "see the output of the late rank; if it is only slow, raise the timeout "
    "(GroupOptions::timeout, "
    "CallOptions::timeout)";

}  // namespace paceline
