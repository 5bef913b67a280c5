#pragma once

// The rank's end of the conversation with the coordinator (messages.h), and the barrier at which
// ranks start each call together.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/transport/shared_memory.h"

#include "apps/bench/messages.h"

namespace paceline::bench {

// A barrier at which the ranks of one contestant line up before a call, so that no rank begins
// while another one still writes its buffer. All contestants use this barrier, because the
// libraries' own barriers release the ranks at different moments. The barrier is in memory that the
// coordinator creates and the ranks map.
//
// Ranks with a core of their own spin for about the time in which a large buffer is written. After
// some microseconds they yield between checks, because on that core a thread of the library may
// still have to finish the last call for another rank. Ranks that share cores sleep at once.
//
// Thread safety: none; each rank has its own object.
class StartBarrier {
 public:
  // Called in the coordinator: returns zeroed memory for `world_size` ranks. Error(kSystem).
  static Fd make_memory(int world_size);

  // `path` is the path of that memory. Error(kSystem).
  StartBarrier(const std::string& path, int rank, int world_size, bool own_core);

  // Returns when all ranks have called it. Error(kTimeout) names a rank that has not arrived.
  void line_up(Deadline deadline);
  // Like line_up(), but also returns the value that rank 0 passed, on every rank.
  bool line_up_and_ask(bool answer_of_rank_0, Deadline deadline);

 private:
  struct Place {
    alignas(128) std::atomic<std::uint32_t> arrivals;
    std::atomic<std::uint32_t> sleepers;
    std::atomic<bool> answers[2];  // used alternately: rank 0 may be one line-up ahead of a reader
  };
  Place& place(int rank) const;
  void wait_for(int rank, Deadline deadline);

  const int rank_, world_size_;
  const bool own_core_;
  Mapping memory_;
  std::uint32_t arrivals_ = 0;
};

// A rank's end of the conversation: sends Hello, binds itself as Setup requires, initialises its
// library, and measures turn by turn. The process ends when the coordinator ends, even if the
// library hangs.
//
// Thread safety: none. Use it on the main thread.
class RankEnd {
 public:
  // `socket` is the name of the coordinator's socket.
  RankEnd(const std::string& socket, LaunchEnvironment environment);
  ~RankEnd();
  RankEnd(const RankEnd&) = delete;
  RankEnd& operator=(const RankEnd&) = delete;

  const LaunchEnvironment& environment() const { return environment_; }

  // Sends Hello, binds this process and calls `body`. If `body` throws, sends the error to the
  // coordinator as a Failure.
  void run(const std::function<void(const Setup& setup)>& body);
  // `body` calls this when the library is initialised. Measures every turn until the coordinator
  // closes the conversation.
  template <class AnyTurn>
  void serve(const Ready& ready,
             const std::function<typename AnyTurn::Result(const AnyTurn&)>& measure);

 private:
  bool wait_for_turn();

  const LaunchEnvironment environment_;
  Conversation conversation_;
  std::jthread lifeline_;
};

// The main program of a contestant. Returns the exit code.
int run_rank(int argc, char** argv,
             const std::function<void(RankEnd& end, const Setup& setup)>& body);

}  // namespace paceline::bench
