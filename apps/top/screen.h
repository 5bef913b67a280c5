#pragma once

// A terminal on which a command draws the same thing again and again: its size, the key that ends
// it, and the signals that concern it. One at a time.

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

  // Requires: can_draw_on(STDOUT_FILENO). Takes the keys of stdin one by one, where that is a
  // terminal whose foreground this is, until it is destroyed; blocks the signals that it tells of.
  Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen();

  // As it is now: people change it.
  Size size() const;
  // In place of what was there, each line cut to the width. UTF-8 is not cut inside a character.
  void draw(const std::vector<std::string>& lines) const;

  // For poll(); -1: none.
  int keys() const { return has_keys_ ? 0 : -1; }
  int signals() const { return signals_.get(); }
  // After keys(): whether one of them was q, or no more will come.
  bool read_quit() const;
  // After signals(): which one came. SIGWINCH, or one that ends the command.
  int read_signal() const;

 private:
  bool has_keys_ = false;
  termios before_{};
  Fd signals_;
};

}  // namespace paceline::apps
