#pragma once

// A command on its own terminal, for tests of interactive use.

#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/system/fd.h"

#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {

class TerminalProcess {
 public:
  struct Size {
    unsigned short rows = 24, columns = 80;
  };

  TerminalProcess(const std::vector<std::string>& command, Size size,
                  const PacelineProcess::Variables& variables = {});
  TerminalProcess(const TerminalProcess&) = delete;
  TerminalProcess& operator=(const TerminalProcess&) = delete;
  ~TerminalProcess();

  void type(const std::string& text) const;
  void resize(Size size) const;
  // Returns the output since the last call, up to and including `text`. Throws Error(kTimeout).
  std::string wait_for(const std::string& text);
  // Reads to the end and returns the exit code as a shell reports it. Throws Error(kTimeout).
  int wait();
  const std::string& shown() const { return shown_; }

 private:
  bool read_some();

  pid_t pid_ = -1;
  Fd terminal_;
  std::string shown_;
  std::size_t seen_ = 0;  // bytes of shown_ that wait_for() has returned
};

}  // namespace paceline::launcher
