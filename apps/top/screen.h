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

  // Requires: can_draw_on(STDOUT_FILENO). If stdin is a terminal with this process in the
  // foreground, reads its keys one by one until destroyed. Blocks the signals that read_signal()
  // returns.
  Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen();

  // The present size: users change it.
  Size size() const;
  // Replaces the last drawing; cuts each line to the width, but not inside a character of UTF-8.
  void draw(const std::vector<std::string>& lines) const;

  // For poll(); -1: none.
  int keys() const { return has_keys_ ? 0 : -1; }
  int signals() const { return signals_.get(); }
  // After keys(): whether a key was q, or no more will come.
  bool read_quit() const;
  // After signals(): which one came. SIGWINCH, or one that ends the command.
  int read_signal() const;

 private:
  bool has_keys_ = false;
  termios before_{};
  Fd signals_;
};

}  // namespace paceline::apps
