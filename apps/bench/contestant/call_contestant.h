#pragma once

// A library whose calls are measured, with two processes: the first one calls the second one. A
// program benchmarks/contestants/rpc_NAME implements CallContestant and calls run_call_worker().
// The calls and their timing are the same for all libraries.
//
// Every request begins with a CallHead. The callee's handler reads it, sleeps for slow_ms, and
// replies with reply_bytes bytes. The callee may use two threads.

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
  std::uint32_t bytes = 0, reply_bytes = 0;  // size of this request, and of its reply
  std::uint32_t slow_ms = 0;                 // how long its handler sleeps
  std::uint32_t unused = 0;
};

// Requires: at least sizeof(CallHead) bytes.
CallHead head_of(std::span<const std::byte> request);

using CallClock = std::chrono::steady_clock;

// The times of a kBlocking turn.
struct CallTimes {
  std::vector<double> seconds{};  // duration of each call that was not slow
  std::uint64_t calls = 0;        // including slow ones
};

// The requests of one turn, and the moment at which the turn is over.
class CallLoad {
 public:
  explicit CallLoad(const CallTurn& turn);
  // Starts the clock. The measurement calls it before each turn. A contestant whose threads take
  // time to start calls it again when they are ready.
  void start();
  double seconds_since_start() const;
  const CallTurn& turn() const { return turn_; }
  std::span<const std::byte> request() const { return request_; }
  std::span<const std::byte> slow_request() const { return slow_request_; }
  // Whether another call may begin.
  bool goes_on() const { return CallClock::now() < end_; }
  // Whether call number `call` of `caller` is a slow one. Different callers make their slow calls
  // at different times.
  bool is_slow(int caller, std::uint64_t call) const;

 private:
  const CallTurn turn_;
  std::vector<std::byte> request_, slow_request_;
  CallClock::time_point begin_, end_;
};

class CallContestant {
 public:
  virtual ~CallContestant() = default;

  // The library and its version, for example "gRPC 1.51.1".
  virtual std::string version() const = 0;
  // Why the library does not support the calls of `turn`, for example "has no one-way calls"; empty
  // if it supports them.
  virtual std::string lacks(const CallTurn& turn) const = 0;

  // The functions below are used in the caller only; errors are exceptions.

  // Makes a call, waits for the reply and checks its length. Several threads call this at the same
  // time if the turn has several callers.
  virtual void call(std::span<const std::byte> request) = 0;
  // Makes calls while load.goes_on(), turn().width of them in flight at a time. Returns the number
  // of calls, after the last reply.
  virtual std::uint64_t pipeline(const CallLoad& load) = 0;
  // Sends messages while load.goes_on(). Returns their number when the callee has received all of
  // them.
  virtual std::uint64_t tell(const CallLoad& /*load*/) { return 0; }
  // Runs turn().width callers and returns their times. By default each caller is a thread that uses
  // call().
  virtual CallTimes call_all(CallLoad& load);
};

// The variable that sets JoinOptions::spin of Paceline's workers, in microseconds.
inline constexpr const char* kSpinVariable = "PACELINE_BENCH_SPIN_US";

struct CallPlace {
  bool is_caller = false, uses_tcp = false;
  std::string unix_name;  // an abstract name on which the callee may listen
  Endpoint tcp;           // an address on which the callee may listen
};

// Initialises the library: the callee listens and the caller connects, in any order. The callee
// answers on its own threads until its CallContestant is destroyed.
using ConnectCalls = std::function<std::unique_ptr<CallContestant>(const CallPlace& place)>;

// The main program of a contestant of calls. Returns the exit code. argv[1] is the name of the
// coordinator's socket.
int run_call_worker(int argc, char** argv, const ConnectCalls& connect);

// A text for version(): "over TCP", "over UNIX sockets".
std::string way_of(const CallPlace& place);

// Error(kCorrupt) if the reply does not have the size that `request` asks for.
void check_reply(std::span<const std::byte> request, std::size_t reply_bytes);

}  // namespace paceline::bench
