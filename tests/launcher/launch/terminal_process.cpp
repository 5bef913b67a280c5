#include "tests/launcher/launch/terminal_process.h"

#include <csignal>
#include <cstdlib>

#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/socket.h"

namespace paceline::launcher {

TerminalProcess::TerminalProcess(const std::vector<std::string>& command, Size size,
                                 const PacelineProcess::Variables& variables) {
  const winsize window{size.rows, size.columns, 0, 0};
  int terminal = -1;
  pid_ = forkpty(&terminal, nullptr, nullptr, &window);
  if (pid_ < 0) throw system_error("forkpty");
  if (pid_ == 0) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(99);
  }
  terminal_.reset(terminal);
}

TerminalProcess::~TerminalProcess() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void TerminalProcess::type(const std::string& text) const {
  if (write(terminal_.get(), text.data(), text.size()) < 0) throw system_error("typing");
}

void TerminalProcess::resize(Size size) const {
  const winsize window{size.rows, size.columns, 0, 0};
  if (ioctl(terminal_.get(), TIOCSWINSZ, &window) != 0) throw system_error("TIOCSWINSZ");
}

bool TerminalProcess::read_some() {
  if (!wait_ready(terminal_.get(), POLLIN, Deadline::after(PacelineProcess::kLimit))) {
    fail(ErrorCode::kTimeout, "shown so far: {}", shown_);
  }
  char bytes[4096];
  // Fails when the program has ended.
  const ssize_t length = read(terminal_.get(), bytes, sizeof bytes);
  if (length > 0) shown_.append(bytes, static_cast<std::size_t>(length));
  return length > 0;
}

std::string TerminalProcess::wait_for(const std::string& text) {
  std::size_t at = 0;
  while ((at = shown_.find(text, seen_)) == std::string::npos) {
    if (!read_some()) fail(ErrorCode::kTimeout, "it ended without '{}': {}", text, shown_);
  }
  const std::string part = shown_.substr(seen_, at + text.size() - seen_);
  seen_ = at + text.size();
  return part;
}

int TerminalProcess::wait() {
  while (read_some()) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace paceline::launcher
