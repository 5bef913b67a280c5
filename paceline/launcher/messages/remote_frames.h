#pragma once

// The messages between a launcher and the launcher that it starts on another host, through stdin
// and stdout of the command that connects them (ssh, srun): frames that consist of a kind, a length
// and that many bytes (messages/FORMAT.md). One frame carries the job.
//
// Shells and login scripts of the other host may print something before the first frame. So the
// launcher on that host first sends a greeting, and the reader skips everything before the
// greeting. These functions do no input or output.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/messages/clock_comparison.h"

namespace paceline::launcher {

enum class FrameKind : char {
  kHello = 'H',  // from the host: its version of Paceline; always its first frame
  kAlive = 'A',  // both directions, every few seconds: a sign of life
  kClock = 'K',  // a ClockExchange; to the host: the question; from it: the answer
  // Messages to the host.
  kJob = 'J',     // a RemoteJob
  kSignal = 'S',  // one byte: a signal for the ranks
  kInput = 'I',   // bytes for rank 0's stdin
  kInputEnd = 'E',
  // Messages from the host.
  kPort = 'P',        // u16: the port on host 0 at which the agents meet
  kOut = '1',         // bytes for stdout, as `paceline run` on that host prints them
  kErr = '2',         // bytes for stderr
  kSay = 'W',         // a message of its agent about this host
  kAnnounce = 'N',    // a message of its agent about the whole job
  kLeads = 'M',       // an Endpoint: the agent there leads the job; other agents connect to it
  kOver = 'O',        // one byte: the job is over on all hosts, with this exit code
  kTimeline = 'D',    // a rank's timeline, packed (engine/telemetry/timeline_file.h)
  kInputTaken = 'T',  // u32: how many bytes of kInput were passed on
  kExit = 'X',        // one byte: the exit code; the last frame
};

struct Frame {
  FrameKind kind;
  std::string payload;
};

std::string encode(const ClockExchange& exchange);
std::string encode(const Endpoint& endpoint);
// Error(kCorrupt) when the bytes are not such a value.
ClockExchange decode_clock_exchange(const std::string& bytes);
Endpoint decode_endpoint(const std::string& bytes);

// The payload of kSignal, kPort, kOver, kInputTaken or kExit, which is one number. Error(kCorrupt)
// when the payload has another length.
template <class Number>
Number decode_number(std::string_view payload) {
  if (payload.size() != sizeof(Number))
    throw Error(ErrorCode::kCorrupt, "a message with a number has the wrong length");
  return ByteReader(as_bytes(payload)).get<Number>();
}

std::string encode_frame(FrameKind kind, std::string_view payload = {});

// The first bytes that the launcher on the other host sends.
inline constexpr std::string_view kGreeting = "\x01paceline-remote-1\n";

class FrameReader {
 public:
  // Skips all bytes before `greeting`, unless `greeting` is empty.
  explicit FrameReader(std::string_view greeting = {}) : greeting_(greeting) {}

  void feed(std::string_view bytes);
  // The next whole frame. Error(kCorrupt) for a kind or length that is never sent.
  std::optional<Frame> next();
  // The last 2000 bytes that came before the greeting, for error messages.
  const std::string& skipped() const { return skipped_; }
  bool greeted() const { return greeting_.empty(); }

 private:
  bool find_greeting();

  std::string_view greeting_;  // empty once it has been found
  std::string buffer_, skipped_;
  std::size_t taken_ = 0;  // bytes of buffer_ that have been read
};

// One host's part in a job that a launcher somewhere else started.
struct HostPart {
  std::string host;                 // the launcher's name for this host, as in the prefix "[a:3] "
  std::string secret;               // the secret of the job, as text
  std::vector<int> ranks_per_host;  // in the order of hosts
  // Where the agents meet now, in a job that has begun. nullopt: at the first host.
  std::optional<Endpoint> meeting;
  bool operator==(const HostPart&) const = default;
};

// Everything that `paceline run` on another host needs from the launcher that starts it there. It
// travels through the connection's stdin, so the secret, the variables and the arguments of the
// program never pass through a shell and do not appear in a list of processes.
struct RemoteJob {
  std::vector<std::string> arguments;              // of paceline run: options, "--", the program
  std::string directory;                           // the folder in which the ranks start
  std::map<std::string, std::string> environment;  // variables to set there
  HostPart part;
  std::uint16_t port = 0;  // where the agents meet at the first host; 0: that host picks a port
  bool operator==(const RemoteJob&) const = default;
};

std::string encode(const RemoteJob& job);
// Error(kCorrupt) when the bytes are not such a value.
RemoteJob decode_job(const std::string& bytes);

}  // namespace paceline::launcher
