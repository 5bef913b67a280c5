#pragma once

// The launcher's two consoles, stdout and stderr, written without ever waiting for their readers:
// what does not fit waits until the loop sees room.

#include <string>

#include "paceline/launch/console.h"
#include "paceline/launch/event_loop.h"

namespace paceline::launch {

class Consoles {
 public:
  // `loop` must outlive it.
  explicit Consoles(EventLoop& loop) : loop_(loop) {}

  Console& out() { return out_.console; }
  Console& err() { return err_.console; }
  // The launcher's own words go to stderr.
  void say(const std::string& text) { err_.console.write(text); }
  bool empty() const { return out_.console.empty() && err_.console.empty(); }
  // Once a turn: asks the loop for room where something waits.
  void watch_for_room();

 private:
  struct Watched {
    Console console;
    bool watched = false;
  };

  EventLoop& loop_;
  Watched out_{Console(1)}, err_{Console(2)};
};

}  // namespace paceline::launch
