#pragma once

// The messages between the coordinator and the ranks of a contestant: a length and then JSON, over
// a Unix socket. Their order is fixed:
//
//   rank          Hello                who I am; nothing of the library has been touched yet
//   coordinator   Setup                where to run
//   rank          Ready                the library is up; or Failure
//   coordinator   Turn or CallTurn     measure this; all other contestants sleep meanwhile
//   rank          its result           or Failure, after which the rank ends
//   ... more turns, then the coordinator closes the socket and the rank ends.
//
// A rank that is not on turn waits in poll() and uses no processor time.

#include <cstdint>
#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"

#include "apps/bench/operation.h"

namespace paceline::bench {

// A Unix socket for processes of one user: its random name, in Linux's abstract namespace, vanishes
// with the last descriptor. The kernel tells each end which user the other one is.
struct PrivateListener {
  std::string name;
  Fd socket;
};
PrivateListener listen_private();

// Error(kTimeout) when no process listens, kInvalid when another user does.
Fd connect_private(const std::string& name, Deadline deadline);

// The next connection of this user; those of others are closed. Empty when none came in time.
Fd accept_private(const Fd& listener, Deadline deadline);

struct Hello {
  static constexpr const char* kKind = "hello";
  int rank = 0, world_size = 0;
};

struct Setup {
  static constexpr const char* kKind = "setup";
  std::vector<int> cpus;   // empty: not bound
  bool own_core = false;   // no other rank computes on them
  std::string start_line;  // path of its memory
  std::string option;  // an algorithm or a transport that the library shall use; empty: its choice
};

struct Ready {
  static constexpr const char* kKind = "ready";
  std::string version;
  bool has_symmetric_memory = false;
  bool gives_results = true;
};

struct TurnResult;
struct Turn {
  static constexpr const char* kKind = "turn";
  using Result = TurnResult;
  Operation op = Op::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  Placement placement = Placement::kInPlace;
  MemoryKind memory = MemoryKind::kOrdinary;
  std::size_t count = 0;  // count_for()
  bool fresh = true;      // every rank writes its buffers before every call
  bool check = false;
  int min_calls = 1, max_calls = 1;
  double seconds = 0;  // after which no further call begins, except for min_calls
  bool operator==(const Turn&) const = default;
};

struct TurnResult {
  static constexpr const char* kKind = "result";
  std::string lacks;            // the library cannot do it; nothing was measured
  std::vector<double> seconds;  // of each call, on this rank
  std::string difference;       // with Turn::check: the first wrong element; empty when right
  double idle_seconds = 0;      // since the last turn
  double idle_cpu_seconds = 0;  // processor time of this process in it
};

struct CallTurnResult;
// Calls of one kind and size. The caller measures; the callee, whose library serves calls on
// threads of its own, answers with nothing.
struct CallTurn {
  static constexpr const char* kKind = "calls";
  using Result = CallTurnResult;
  enum class Form {
    kBlocking,   // `width` callers, each of which waits for its reply
    kPipelined,  // one caller, `width` calls under way
    kOneWay,     // one caller, messages without a reply
  };
  Form form = Form::kBlocking;
  int width = 1;
  std::size_t bytes = 0, reply_bytes = 0;  // of a request, at least sizeof(CallHead); of its reply
  int slow_every = 0;  // one call in so many of a caller takes slow_ms in its handler; 0: none
  int slow_ms = 0;
  double seconds = 0;  // after which no further call begins
  bool operator==(const CallTurn&) const = default;
};

struct CallTurnResult {
  static constexpr const char* kKind = "result";
  std::string lacks;                              // as above
  double p50_us = 0, p99_us = 0;                  // of calls that are not slow; 0 unless kBlocking
  double per_second = 0;                          // calls, or messages that the callee received
  double idle_seconds = 0, idle_cpu_seconds = 0;  // as above
};

// One end of the socket. A message that is wrong, too long or missing is an Error: kCorrupt,
// kPeerLost, kTimeout; a Failure of the other end is kAborted, with its text.
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
