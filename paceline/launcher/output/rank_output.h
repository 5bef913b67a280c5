#pragma once

// The output of one rank: two streams come in, each through a pipe or a terminal; they go to its
// log, to the last lines for a failure report, and perhaps to the console.

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "paceline/engine/core/system/fd.h"
#include "paceline/launcher/output/console.h"
#include "paceline/launcher/output/line_formatter.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

// A pipe whose reading end is non-blocking. Error(kSystem).
Pipe make_output_pipe();

class RankOutput {
 public:
  static constexpr int kNumStreams = 2;  // stdout, stderr

  // `console[i]` is where stream i also goes, or null. With a prefix, lines are formatted; without
  // one, bytes pass as they are.
  RankOutput(Fd log, std::array<Console*, kNumStreams> console, const std::string& prefix);

  void set_pipe(int stream, Fd read_end) { streams_[stream].pipe = std::move(read_end); }
  int pipe(int stream) const { return streams_[stream].pipe.get(); }
  bool is_open(int stream) const { return static_cast<bool>(streams_[stream].pipe); }
  // True while the stream's console has more than it can take.
  bool is_held_up(int stream) const;
  // True once after each change of is_held_up().
  bool hold_changed(int stream);

  // Takes the bytes that are there, 64 KiB at most; false when there was nothing to take. Closes
  // the stream at its end.
  bool read_some(int stream);
  // Takes the bytes that are there from both streams, up to a full pipe's worth of each.
  void drain();
  void close(int stream);

  // Why the log is incomplete; empty when it is whole.
  const std::string& log_problem() const { return log_problem_; }
  // The last `count` lines of both streams, in the order in which they came, with control
  // characters as text, and short enough to print.
  std::string last_lines(int count) const;

 private:
  struct Stream {
    Fd pipe;
    Console* console = nullptr;
    std::optional<LineFormatter> formatter;
    bool held_up = false;
  };
  void write_log(std::string_view bytes);
  void remember(std::string_view bytes);
  void show(Stream& stream, std::string_view bytes);

  Fd log_;
  std::string log_problem_;
  std::array<Stream, kNumStreams> streams_;
  std::string tail_;  // the last output of both streams
};

// A rank's stdout is a pseudo-terminal, because programs of every language write to a terminal line
// by line, but keep what they print to a pipe until 4 KiB or more have come together. So lines
// appear when they are printed, and a rank that is killed loses none. stderr, which no language
// keeps back, stays a pipe.
//
// The terminal is raw: bytes pass unchanged, as through a pipe. It is no process's controlling
// terminal, so it sends no signals. It has the size of the launcher's terminal, or 24 lines of 80
// columns.
//
// Where the system has no pseudo-terminal to give (no /dev/pts, its limit is reached), stdout is a
// pipe.
struct RankStdout {
  Pipe ends;
  std::string problem;  // why it is a pipe; empty when it is a terminal
};

// Error(kSystem) where not even a pipe can be made.
RankStdout make_rank_stdout();

}  // namespace paceline::launcher
