#pragma once

// A contestant's process as the coordinator's partner (messages.h), and the line at which its ranks
// start each call.

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

// Where the ranks of one contestant line up before a call, so that none begins while another still
// writes its buffer. The same for every contestant, because their own barriers would let the ranks
// go at different moments. It is memory that the coordinator made and the ranks map.
//
// Ranks with a core of their own spin for as long as a large buffer takes to be written, after some
// microseconds with yielding: a library's own threads may still have to finish the last call on
// that core, for another rank. Ranks that share cores sleep at once.
//
// Thread safety: one object a rank.
class StartLine {
 public:
  // In the coordinator: zeroed memory for `world_size` ranks. Error(kSystem).
  static Fd make_memory(int world_size);

  // `path` leads to that memory. Error(kSystem).
  StartLine(const std::string& path, int rank, int world_size, bool own_core);

  // Returns when all ranks have called it. Error(kTimeout) names a rank that has not.
  void line_up(Deadline deadline);
  // As line_up(); returns on every rank what rank 0 passed.
  bool line_up_and_ask(bool answer_of_rank_0, Deadline deadline);

 private:
  struct Place {
    alignas(128) std::atomic<std::uint32_t> arrivals;
    std::atomic<std::uint32_t> sleepers;
    std::atomic<bool> answers[2];  // used in turn: rank 0 may be one line-up ahead of a reader
  };
  Place& place(int rank) const;
  void wait_for(int rank, Deadline deadline);

  const int rank_, world_size_;
  const bool own_core_;
  Mapping memory_;
  std::uint32_t arrivals_ = 0;
};

// A rank's end of the conversation: says hello, binds itself as it is told, brings its library up,
// and measures turn by turn. The process ends when the coordinator does, even while the library
// hangs.
//
// Thread safety: none; the main thread.
class RankEnd {
 public:
  // `socket` is the name of the coordinator's socket.
  RankEnd(const std::string& socket, LaunchEnvironment who);
  ~RankEnd();
  RankEnd(const RankEnd&) = delete;
  RankEnd& operator=(const RankEnd&) = delete;

  const LaunchEnvironment& who() const { return who_; }

  // Says hello, binds this process, and calls `body`; tells the coordinator what `body` throws.
  void run(const std::function<void(const Setup& setup)>& body);
  // Called by `body` when the library is up: measures every turn until the coordinator closes the
  // conversation.
  template <class AnyTurn>
  void serve(const Ready& ready,
             const std::function<typename AnyTurn::Result(const AnyTurn&)>& measure);

 private:
  bool wait_for_turn();

  const LaunchEnvironment who_;
  Conversation conversation_;
  std::jthread lifeline_;
};

// The main program of a contestant. Returns the exit code.
int run_rank(int argc, char** argv,
             const std::function<void(RankEnd& end, const Setup& setup)>& body);

}  // namespace paceline::bench
