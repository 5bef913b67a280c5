#pragma once

// A contestant's process as the coordinator's partner (messages.h): says hello, runs where it is
// told to, brings its library up, and measures turn by turn.
//
// It ends when the coordinator does, even while the library hangs.
//
// Thread safety: none; the main thread.

#include <functional>
#include <string>
#include <thread>

#include "paceline/engine/rendezvous/launch_environment.h"

#include "apps/bench/messages.h"

namespace paceline::bench {

class RankEnd {
 public:
  // `socket` is the name of the coordinator's.
  RankEnd(const std::string& socket, LaunchEnvironment who);
  ~RankEnd();
  RankEnd(const RankEnd&) = delete;
  RankEnd& operator=(const RankEnd&) = delete;

  const LaunchEnvironment& who() const { return who_; }

  // Says hello, then calls `body` where this process shall run; tells the coordinator what it
  // throws.
  void run(const std::function<void(const Setup& setup)>& body);
  // For `body`, when the library is up: measures every turn until the coordinator has closed the
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

// The main program of a contestant. The exit code.
int run_rank(int argc, char** argv,
             const std::function<void(RankEnd& end, const Setup& setup)>& body);

}  // namespace paceline::bench
