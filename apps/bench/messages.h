#pragma once

// The messages between the coordinator (`paceline bench`) and the ranks of a contestant: a length
// and then JSON, over a Unix socket. Their order is fixed:
//
//   rank          Hello                its rank and world size; the library is not yet initialised
//   coordinator   Setup                where to run
//   rank          Ready or Failure     whether the library has been initialised
//   coordinator   Turn or CallTurn     what to measure; all other contestants sleep meanwhile
//   rank          a result or Failure  after a Failure the rank ends
//   ... more turns, then the coordinator closes the socket and the rank ends.
//
// While another contestant has its turn, a rank waits in poll() and uses no processor time.

#include <cstdint>
#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"

#include "apps/bench/operation.h"

namespace paceline::bench {

// A Unix socket for processes of one user. Its random name, in Linux's abstract namespace,
// disappears with the last descriptor. Each end learns the other end's user from the kernel.
struct PrivateListener {
  std::string name;
  Fd socket;
};
PrivateListener listen_private();

// Error(kTimeout) when no process listens, kInvalid when the listening process belongs to another
// user.
Fd connect_private(const std::string& name, Deadline deadline);

// Returns the next connection from a process of this user, and closes connections from other users.
// Empty if none arrived in time.
Fd accept_private(const Fd& listener, Deadline deadline);

struct Hello {
  static constexpr const char* kKind = "hello";
  int rank = 0, world_size = 0;
};

struct Setup {
  static constexpr const char* kKind = "setup";
  std::vector<int> cpus;   // empty: not bound
  bool own_core = false;   // no other rank computes on these cpus
  std::string start_line;  // path of the memory of the StartBarrier
  std::string option;      // the algorithm or transport to use; empty: the library's choice
};

struct Ready {
  static constexpr const char* kKind = "ready";
  std::string version;
  bool has_symmetric_memory = false;
  bool gives_results = true;  // false: a yardstick that only moves bytes; no results to check
};

struct TurnResult;
struct Turn {
  static constexpr const char* kKind = "turn";
  using Result = TurnResult;
  Operation op = Op::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  Placement placement = Placement::kInPlace;
  MemoryKind memory = MemoryKind::kOrdinary;
  std::size_t count = 0;  // from count_for()
  bool fresh = true;      // every rank writes its buffers before every call
  bool check = false;
  int min_calls = 1, max_calls = 1;
  double seconds = 0;  // after this time no call begins, except the first min_calls
  bool operator==(const Turn&) const = default;
};

struct TurnResult {
  static constexpr const char* kKind = "result";
  std::string lacks;            // why the calls are not supported; then nothing was measured
  std::vector<double> seconds;  // duration of each call on this rank
  std::string difference;       // with Turn::check: the first wrong element; empty when right
  double idle_seconds = 0;      // time since the last turn
  double idle_cpu_seconds = 0;  // processor time of this process during idle_seconds
};

struct CallTurnResult;
// Calls of one kind and size. The caller measures. The callee, whose library serves the calls on
// its own threads, sends an empty result.
struct CallTurn {
  static constexpr const char* kKind = "calls";
  using Result = CallTurnResult;
  enum class Form {
    kBlocking,   // `width` callers, each of which waits for its reply
    kPipelined,  // one caller, `width` calls in flight
    kOneWay,     // one caller, messages without a reply
  };
  Form form = Form::kBlocking;
  int width = 1;
  std::size_t bytes = 0, reply_bytes = 0;  // of a request (at least sizeof(CallHead)), of a reply
  int slow_every = 0;  // the handler of every slow_every-th call takes slow_ms; 0: no call is slow
  int slow_ms = 0;
  double seconds = 0;  // after this time no call begins
  bool operator==(const CallTurn&) const = default;
};

struct CallTurnResult {
  static constexpr const char* kKind = "result";
  std::string lacks;              // as in TurnResult
  double p50_us = 0, p99_us = 0;  // over the calls that are not slow; 0 unless kBlocking
  double per_second = 0;          // calls, or messages that the callee received
  double idle_seconds = 0, idle_cpu_seconds = 0;  // as in TurnResult
};

// One end of the socket. An invalid or too long message is Error(kCorrupt), a closed socket
// kPeerLost, and a message that does not arrive in time kTimeout. A Failure from the other end is
// Error(kAborted) with its text.
class Conversation {
 public:
  explicit Conversation(Fd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }

  // Message: any struct above that has a kKind.
  template <class Message>
  void send(const Message& message, Deadline deadline);
  template <class Message>
  Message receive(Deadline deadline);
  void send_failure(const std::string& text, Deadline deadline);

 private:
  void send_text(const std::string& text, Deadline deadline);
  std::string receive_text(Deadline deadline);
  Fd socket_;
};

}  // namespace paceline::bench
