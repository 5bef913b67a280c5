#pragma once

// A library whose calls are measured: two processes, of which the first calls the second. A program
// benchmarks/contestants/rpc_NAME implements this for the caller and hands it to run_call_worker();
// the calls and how they are timed are the same for all.
//
// Every request begins with a CallHead. The callee's handler reads it, sleeps for the time and
// replies with the bytes that it asks for. The callee may use two threads.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/core/system/socket.h"

#include "apps/bench/messages.h"

namespace paceline::bench {

struct CallHead {
  std::uint32_t bytes = 0, reply_bytes = 0;  // of this request, of the reply to it
  std::uint32_t slow_ms = 0;                 // that its handler sleeps
  std::uint32_t unused = 0;
};

// Requires: at least sizeof(CallHead) bytes.
CallHead head_of(std::span<const std::byte> request);

using CallClock = std::chrono::steady_clock;

// The times of a turn of kBlocking.
struct CallTimes {
  std::vector<double> seconds{};  // of each call that was not slow
  std::uint64_t calls = 0;        // slow ones included
};

// The requests of one turn, and when it is over.
class CallLoad {
 public:
  explicit CallLoad(const CallTurn& turn);
  // Starts the clock. Called by the measurement before each turn; a contestant whose threads take
  // time to start calls it again when they are ready.
  void start();
  double seconds_since_start() const;
  const CallTurn& turn() const { return turn_; }
  std::span<const std::byte> request() const { return request_; }
  std::span<const std::byte> slow_request() const { return slow_request_; }
  // Whether another call may begin.
  bool goes_on() const { return CallClock::now() < end_; }
  // Whether a caller's call is a slow one; different callers are slow at different times.
  bool is_slow(int caller, std::uint64_t call) const;

 private:
  const CallTurn turn_;
  std::vector<std::byte> request_, slow_request_;
  CallClock::time_point begin_, end_;
};

class CallContestant {
 public:
  virtual ~CallContestant() = default;

  // "gRPC 1.51.1".
  virtual std::string version() const = 0;
  // Why the library cannot do it, for example "has no one-way calls"; empty if it can.
  virtual std::string lacks(const CallTurn& turn) const = 0;

  // Everything below is for the caller; errors are exceptions.

  // Waits for the reply, and checks its length. Several threads call at a time if the turn has
  // several callers.
  virtual void call(std::span<const std::byte> request) = 0;
  // As many calls as `load` allows, with turn().width under way; returns after the last reply.
  virtual std::uint64_t pipeline(const CallLoad& load) = 0;
  // As many messages as `load` allows; returns when the callee has received all.
  virtual std::uint64_t tell(const CallLoad& /*load*/) { return 0; }
  // turn().width callers. By default each is a thread that uses call().
  virtual CallTimes call_all(CallLoad& load);
};

// The variable that sets JoinOptions::spin of Paceline's workers, in microseconds.
inline constexpr const char* kSpinVariable = "PACELINE_BENCH_SPIN_US";

struct CallPlace {
  bool is_caller = false, uses_tcp = false;
  std::string unix_name;  // abstract: where the callee may listen
  Endpoint tcp;           // likewise
};

// Brings the library up: the callee listens, the caller connects, in any order. The callee answers
// on threads of its own until its object ends.
using ConnectCalls = std::function<std::unique_ptr<CallContestant>(const CallPlace& place)>;

// The main program of a contestant of calls. Returns the exit code. argv[1] is the name of the
// coordinator's socket.
int run_call_worker(int argc, char** argv, const ConnectCalls& connect);

// For version(): "over TCP", "over UNIX sockets".
std::string way_of(const CallPlace& place);

// Requires: a reply of the size that `request` asks for. Error(kCorrupt) otherwise.
void check_reply(std::span<const std::byte> request, std::size_t reply_bytes);

}  // namespace paceline::bench
