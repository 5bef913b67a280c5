#include "paceline/launcher/output/rank_stdout.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

namespace paceline::launcher {
namespace {

winsize window_of_launcher() {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    winsize window{};
    if (ioctl(fd, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) return window;
  }
  return {.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
}

// Returns nothing, and sets errno, where the system has no terminal to give.
std::optional<Pipe> make_terminal() {
  Pipe terminal;
  terminal.read_end.reset(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  const int own = terminal.read_end.get();
  if (own < 0 || unlockpt(own) != 0) return {};
  // Opens the other end by the descriptor, not by its name, which another mount may hide.
  terminal.write_end.reset(ioctl(own, TIOCGPTPEER, O_WRONLY | O_NOCTTY | O_CLOEXEC));
  const int ranks = terminal.write_end.get();
  termios mode{};
  if (ranks < 0 || tcgetattr(ranks, &mode) != 0) return {};
  cfmakeraw(&mode);
  const winsize window = window_of_launcher();
  if (tcsetattr(ranks, TCSANOW, &mode) != 0 || ioctl(own, TIOCSWINSZ, &window) != 0) return {};
  return terminal;
}

}  // namespace

RankStdout make_rank_stdout() {
  if (auto terminal = make_terminal()) return {std::move(*terminal), ""};
  std::string problem = std::strerror(errno);
  return {make_output_pipe(), std::move(problem)};
}

}  // namespace paceline::launcher
