#include "apps/top/screen.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string_view>

#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/io.h"

namespace paceline::apps {

namespace {

constexpr const char* kClear = "\x1b[H\x1b[J";

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }

std::string cut(const std::string& line, int columns) {
  int count = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (begins_character(line[i]) && ++count > columns) return line.substr(0, i);
  }
  return line;
}

}  // namespace

Screen::Screen() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) throw system_error("signalfd()");
  has_keys_ = tcgetpgrp(STDIN_FILENO) == getpgrp() && tcgetattr(STDIN_FILENO, &before_) == 0;
  if (!has_keys_) return;
  termios keys = before_;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  tcsetattr(STDIN_FILENO, TCSANOW, &keys);
}

Screen::~Screen() {
  std::fputs("\n", stdout);
  if (has_keys_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

Screen::Size Screen::size() const {
  winsize window{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0) return {};
  return {window.ws_row, window.ws_col};
}

void Screen::draw(const std::vector<std::string>& lines) const {
  std::string text = kClear;
  const int columns = size().columns;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += "\n";  // a newline after the last line would scroll the screen
    text += columns > 0 ? cut(lines[i], columns) : lines[i];
  }
  std::fputs(text.c_str(), stdout);
}

bool Screen::read_quit() const {
  char keys[64];
  const ssize_t count = read_some(STDIN_FILENO, std::as_writable_bytes(std::span(keys)));
  if (count < 0 && errno == EAGAIN) return false;
  if (count <= 0) return true;
  return std::string_view(keys, static_cast<std::size_t>(count)).find_first_of("qQ") !=
         std::string_view::npos;
}

int Screen::read_signal() const {
  signalfd_siginfo info{};
  if (!read_record(signals_.get(), info)) return SIGWINCH;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace paceline::apps
