#pragma once

// A terminal on which a command redraws the same view: its size, the key that quits, and the
// signals for the command. A process may have only one Screen at a time.

#include <string>
#include <vector>

#include <termios.h>

#include "paceline/engine/core/system/fd.h"

namespace paceline::apps {

class Screen {
 public:
  struct Size {
    int rows = 0, columns = 0;  // 0: not known
  };

  // Requires: can_draw_on(STDOUT_FILENO). If stdin is a terminal with this process in the
  // foreground, single keys arrive without Enter. Blocks the signals that read_signal() returns.
  Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen();

  // The current size; users may change it at any time.
  Size size() const;
  // Replaces the last drawing. Cuts each line to the width, but not inside a UTF-8 character.
  void draw(const std::vector<std::string>& lines) const;

  // Descriptors for poll(); -1: none.
  int keys() const { return has_keys_ ? 0 : -1; }
  int signals() const { return signals_.get(); }
  // Call this when keys() is ready. Returns true if a key was q, or if no more keys will arrive.
  bool read_quit() const;
  // Call this when signals() is ready. Returns the signal: SIGWINCH, or one that ends the command.
  int read_signal() const;

 private:
  bool has_keys_ = false;
  termios before_{};
  Fd signals_;
};

}  // namespace paceline::apps
