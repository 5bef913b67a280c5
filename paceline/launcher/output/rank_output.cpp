#include "paceline/launcher/output/rank_output.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/system/io.h"

namespace paceline::launcher {

namespace {

constexpr std::size_t kPipeReadSize = 64 << 10;
constexpr int kPipeDrainReads = 32;  // a pipe holds 64 KiB, or 1 MiB if a program asked for it
constexpr std::size_t kTailSize = 16 << 10;
constexpr std::size_t kShownLine = 2000;

}  // namespace

Pipe make_output_pipe() {
  Pipe pipe = make_pipe();
  fcntl(pipe.read_end.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

RankOutput::RankOutput(Fd log, std::array<Console*, kNumStreams> console, const std::string& prefix)
    : log_(std::move(log)) {
  for (int i = 0; i < kNumStreams; ++i) {
    streams_[i].console = console[i];
    if (console[i] != nullptr && !prefix.empty()) streams_[i].formatter.emplace(prefix);
  }
}

bool RankOutput::is_held_up(int stream) const {
  const Console* console = streams_[stream].console;
  return console != nullptr && console->saturated();
}

bool RankOutput::hold_changed(int stream) {
  const bool now = is_held_up(stream);
  return std::exchange(streams_[stream].held_up, now) != now;
}

bool RankOutput::read_some(int stream) {
  char buffer[kPipeReadSize];
  Stream& from = streams_[stream];
  if (!from.pipe) return false;
  const auto into = std::as_writable_bytes(std::span(buffer));
  std::size_t length = 0;
  ssize_t got = 0;
  do {  // a terminal returns at most 4 KiB per read
    got = read_ready(from.pipe.get(), into.subspan(length));
    length += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  } while (got > 0 && length < into.size());
  const bool at_end = got == 0 || (got < 0 && errno != EAGAIN);  // a terminal ends with EIO
  const std::string_view bytes(buffer, length);
  write_log(bytes);
  remember(bytes);
  show(from, bytes);
  if (at_end) close(stream);
  return length > 0;
}

void RankOutput::drain() {
  for (int i = 0; i < kNumStreams; ++i) {
    for (int reads = 0; reads < kPipeDrainReads && !is_held_up(i) && read_some(i); ++reads) {
    }
  }
}

void RankOutput::close(int stream) {
  Stream& ended = streams_[stream];
  if (!ended.pipe) return;
  ended.pipe.reset();
  if (ended.formatter) {
    std::string text;
    ended.formatter->finish(text);
    ended.console->write(text);
  }
}

void RankOutput::write_log(std::string_view bytes) {
  if (!log_ || write_whole(log_.get(), as_bytes(bytes))) return;
  log_problem_ = std::strerror(errno);
  log_.reset();
}

void RankOutput::remember(std::string_view bytes) {
  if (bytes.size() > kTailSize) bytes.remove_prefix(bytes.size() - kTailSize);
  tail_ += bytes;
  if (tail_.size() > 4 * kTailSize) tail_.erase(0, tail_.size() - kTailSize);
}

void RankOutput::show(Stream& stream, std::string_view bytes) {
  if (stream.console == nullptr) return;
  if (!stream.formatter) return stream.console->write(bytes);
  std::string text;
  stream.formatter->feed(bytes, text);
  stream.console->write(text);
}

std::string RankOutput::last_lines(int count) const {
  std::vector<std::string> lines;
  for (std::size_t end = tail_.size(); end > 0 && static_cast<int>(lines.size()) < count;) {
    if (tail_[end - 1] == '\n') --end;
    const auto newline = end == 0 ? std::string::npos : tail_.rfind('\n', end - 1);
    const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
    std::string line = neutralise(std::string_view(tail_).substr(begin, end - begin));
    if (line.size() > kShownLine) line = "..." + line.substr(line.size() - kShownLine);
    lines.push_back(std::move(line));
    end = begin;
  }
  std::string text;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) text += "  | " + *line + "\n";
  return text;
}

namespace {

winsize window_of_launcher() {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    winsize window{};
    if (ioctl(fd, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) return window;
  }
  return {.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
}

// Returns nullopt, and sets errno, if the system cannot provide a terminal.
std::optional<Pipe> make_terminal() {
  Pipe terminal;
  terminal.read_end.reset(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  const int own = terminal.read_end.get();
  if (own < 0 || unlockpt(own) != 0) return {};
  // Opens the other end through the descriptor, because another mount may hide its name.
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
