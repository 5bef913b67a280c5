#pragma once

// The output of one rank. Each of its two streams arrives through a pipe or a terminal. They are
// copied to the rank's log, to the last lines for a failure report, and, if wanted, to the console.

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

  // `console[i]` is the console to which stream i is copied, or null. With a prefix, lines are
  // formatted (LineFormatter); without one, bytes are copied unchanged.
  RankOutput(Fd log, std::array<Console*, kNumStreams> console, const std::string& prefix);

  void set_pipe(int stream, Fd read_end) { streams_[stream].pipe = std::move(read_end); }
  int pipe(int stream) const { return streams_[stream].pipe.get(); }
  bool is_open(int stream) const { return static_cast<bool>(streams_[stream].pipe); }
  // Whether the stream's console is saturated, so the stream must not be read now.
  bool is_held_up(int stream) const;
  // Returns true once after each change of is_held_up().
  bool hold_changed(int stream);

  // Reads the bytes that have arrived, at most 64 KiB; returns false if there were none. Closes the
  // stream at its end.
  bool read_some(int stream);
  // Reads the bytes that have arrived from both streams: at most 2 MiB of each, which is more than
  // a full pipe holds, and none from a stream that is held up.
  void drain();
  void close(int stream);

  // Why the log is incomplete; empty if it is complete.
  const std::string& log_problem() const { return log_problem_; }
  // The last `count` lines of both streams, in the order of arrival, with control characters shown
  // as text; long lines are cut.
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

// A rank's stdout is a pseudo-terminal, because programs in every language write to a terminal line
// by line, but buffer output to a pipe until they have 4 KiB or more. So lines appear when they are
// printed, and a rank that is killed loses none. stderr, which no language buffers in this way, is
// a pipe.
//
// The terminal is raw: bytes pass unchanged, as through a pipe. It is not the controlling terminal
// of any process, so it sends no signals. It has the size of the launcher's terminal, or 24 lines
// of 80 columns.
//
// If the system cannot provide a pseudo-terminal (no /dev/pts, or its limit is reached), stdout is
// a pipe.
struct RankStdout {
  Pipe ends;
  std::string problem;  // why it is a pipe; empty when it is a terminal
};

// Error(kSystem) if not even a pipe can be made.
RankStdout make_rank_stdout();

}  // namespace paceline::launcher
