#include "paceline/launcher/hosts/remote_end.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <optional>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/launcher/messages/keep_alive.h"
#include "paceline/launcher/messages/remote_frames.h"
#include "paceline/launcher/output/console.h"
#include "paceline/launcher/output/rank_output.h"
#include "paceline/launcher/process/descendants.h"
#include "paceline/launcher/process/event_loop.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/process/rank_resources.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kRemoteReadSize = 64 << 10;
// While more bytes than this wait for the connection, the agent's messages are not read.
constexpr std::size_t kMaxNotices = 8 << 20;
constexpr auto kEndOfRemoteDescendants = 5s;
// How long the agent may take to end after its supervisor was killed. It kills the ranks and
// removes its folder, which takes milliseconds.
constexpr auto kEndOfAgent = 500ms;
// How long the launcher may be silent before it has sent the job. It sends the job when all hosts
// have answered, or when its --start-timeout has passed.
constexpr auto kJobDeadline = 10min;

// The streams that carry the frames. No other bytes may be written to them.
struct FrameStreams {
  Fd in, out;
};

FrameStreams take_standard_streams() {
  FrameStreams streams{Fd(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)),
                       Fd(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3))};
  if (!streams.in || !streams.out) throw system_error("taking the connection's streams");
  const Fd nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
  dup2(nothing.get(), STDIN_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  return streams;
}

class RemoteEnd {
 public:
  RemoteEnd(const RunPart& run, FrameStreams streams)
      : run_(run),
        streams_(std::move(streams)),
        console_(streams_.out.get()),
        signals_(make_signal_fd(outside_signals())) {}

  int serve(const std::string& version);

 private:
  void turn();
  void on_stdin();
  void on_signal();
  void on_frame(const Frame& frame);
  void on_output(int stream);
  void on_notices();
  void tell_time(const std::string& question);
  void on_end();
  void start(RemoteJob job);
  void hold_port(RemoteJob& job);
  [[noreturn]] void be_part(const RemoteJob& job, std::array<Fd, 4> ends);
  void pass_input_on();
  void send_signal(int signal) const;
  void send(FrameKind kind, std::string_view payload = {}) {
    console_.write(encode_frame(kind, payload));
  }
  void watch_for_room();
  void watch_notices();
  bool outputs_closed() const { return !pipes_[0] && !pipes_[1] && !notices_; }

  //   greeting ──the job──▶ serving ──its end──▶ draining       any ──launcher lost──▶ lost
  enum class Stage { kGreeting, kServing, kDraining, kLost };
  bool finished() const {
    return stage_ == Stage::kLost || (stage_ == Stage::kDraining && console_.empty());
  }

  const RunPart& run_;
  FrameStreams streams_;
  Console console_;
  Fd signals_;
  EventLoop loop_;
  FrameReader reader_, notice_reader_;
  Deadline::Clock::time_point heard_ = Deadline::Clock::now();
  Deadline alive_at_ = Deadline::after(kAliveInterval);
  Silence silence_;
  ReservedPort held_;
  pid_t child_ = -1;
  Fd pidfd_, pipes_[2], notices_, input_;
  std::string pending_input_;
  bool input_ends_ = false;
  std::optional<int> status_;  // the child's, as a shell reports it
  Stage stage_ = Stage::kGreeting;
  bool watches_out_ = false, held_up_ = false;
  bool notices_held_ = false;  // the agent's messages are not read
};

int RemoteEnd::serve(const std::string& version) {
  fcntl(streams_.in.get(), F_SETFL, fcntl(streams_.in.get(), F_GETFL) | O_NONBLOCK);
  console_.write(kGreeting);
  send(FrameKind::kHello, version);
  loop_.watch(streams_.in.get(), [this] { on_stdin(); });
  loop_.watch(signals_.get(), [this] { on_signal(); });
  while (!finished()) turn();
  if (child_ > 0) kill(child_, SIGKILL);
  await_all_descendants(Deadline::after(kEndOfAgent));
  end_all_descendants(Deadline::after(kEndOfRemoteDescendants));
  return stage_ == Stage::kLost ? 128 + SIGHUP : *status_;
}

void RemoteEnd::turn() {
  watch_for_room();
  loop_.turn(alive_at_);
  if (alive_at_.expired()) {
    send(FrameKind::kAlive);
    alive_at_ = Deadline::after(kAliveInterval);
  }
  const bool is_silent =
      silence_.lasted() > (stage_ == Stage::kGreeting ? kJobDeadline : kSilenceLimit);
  if (is_silent || console_.error() != 0) stage_ = Stage::kLost;
  if (status_ && outputs_closed() && stage_ == Stage::kServing) {
    stage_ = Stage::kDraining;
    send(FrameKind::kExit, std::string(1, static_cast<char>(*status_)));
  }
}

void RemoteEnd::on_stdin() {
  char buffer[kRemoteReadSize];
  const ssize_t length = read_some(streams_.in.get(), std::as_writable_bytes(std::span(buffer)));
  if (length < 0 && errno == EAGAIN) return;
  if (length <= 0) {
    stage_ = Stage::kLost;
    return;
  }
  silence_.heard();
  heard_ = Deadline::Clock::now();
  reader_.feed({buffer, static_cast<std::size_t>(length)});
  while (auto frame = reader_.next()) on_frame(*frame);
}

void RemoteEnd::on_frame(const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kJob:
      if (child_ > 0) fail(ErrorCode::kCorrupt, "a second job on one connection");
      return start(decode_job(frame.payload));
    case FrameKind::kSignal:
      return send_signal(decode_number<std::uint8_t>(frame.payload));
    case FrameKind::kInput:
      pending_input_ += frame.payload;
      return pass_input_on();
    case FrameKind::kInputEnd:
      input_ends_ = true;
      return pass_input_on();
    case FrameKind::kClock:
      return tell_time(frame.payload);
    default:
      return;  // kAlive
  }
}

void RemoteEnd::tell_time(const std::string& question) {
  ClockExchange exchange = decode_clock_exchange(question);
  exchange.heard = clock_reading(heard_);
  exchange.answered = clock_reading();
  send(FrameKind::kClock, encode(exchange));
}

// Sends a signal to the child; does nothing if no child runs.
void RemoteEnd::send_signal(int signal) const {
  if (child_ > 0 && !status_) kill(child_, signal);
}

void RemoteEnd::on_signal() {
  signalfd_siginfo info;
  while (read_record(signals_.get(), info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    const bool asks_to_end = signal != SIGUSR1 && signal != SIGUSR2;
    if (stage_ == Stage::kGreeting && asks_to_end) stage_ = Stage::kLost;
    send_signal(signal);
  }
}

// Reserves the port where the agents meet, if the job has several hosts and names no port, and
// reports the port to the launcher.
void RemoteEnd::hold_port(RemoteJob& job) {
  if (job.port == 0 && job.part.ranks_per_host.size() > 1) {
    held_ = reserve_port(0);
    job.port = held_.port;
  }
  ByteWriter writer;
  writer.put(job.port);
  send(FrameKind::kPort, to_string(writer.bytes()));
}

void RemoteEnd::start(RemoteJob job) {
  hold_port(job);
  Pipe in = make_pipe();
  Pipe out = make_output_pipe(), err = make_output_pipe(), notices = make_output_pipe();
  std::array<Fd, 4> ends = {std::move(in.read_end), std::move(out.write_end),
                            std::move(err.write_end), std::move(notices.write_end)};
  input_ = std::move(in.write_end);
  fcntl(input_.get(), F_SETFL, O_NONBLOCK);
  const pid_t parent = getpid();
  child_ = fork();
  if (child_ < 0) throw system_error("starting this host's part of the job");
  if (child_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(128 + SIGKILL);
    // SIGTSTP does not stop an orphaned process group. This group is not orphaned, because the
    // parent of its leader is in another group of the same session.
    setpgid(0, 0);
    be_part(job, std::move(ends));
  }
  stage_ = Stage::kServing;
  pidfd_ = open_pidfd(child_);
  pipes_[0] = std::move(out.read_end);
  pipes_[1] = std::move(err.read_end);
  notices_ = std::move(notices.read_end);
  loop_.watch(pidfd_.get(), [this] { on_end(); });
  for (int stream : {0, 1})
    loop_.watch(pipes_[stream].get(), [this, stream] { on_output(stream); });
  loop_.watch(notices_.get(), [this] { on_notices(); });
}

void RemoteEnd::be_part(const RemoteJob& job, std::array<Fd, 4> ends) {
  for (int stream = 0; stream < 3; ++stream) dup2(ends[stream].get(), stream);
  const int notices = ends[3].release();
  for (Fd* own : {&streams_.in, &streams_.out, &signals_, &input_}) own->reset();
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int status = run_(job, notices);
  std::fflush(nullptr);
  _exit(status);
}

void RemoteEnd::on_output(int stream) {
  char buffer[kRemoteReadSize];
  const ssize_t length = read_some(pipes_[stream].get(), std::as_writable_bytes(std::span(buffer)));
  if (length < 0 && errno == EAGAIN) return;
  if (length <= 0) {
    loop_.forget(pipes_[stream].get());
    return pipes_[stream].reset();
  }
  send(stream == 0 ? FrameKind::kOut : FrameKind::kErr, {buffer, static_cast<std::size_t>(length)});
}

// Passes on the agent's messages, which are already frames.
void RemoteEnd::on_notices() {
  char buffer[kRemoteReadSize];
  const ssize_t length = read_some(notices_.get(), std::as_writable_bytes(std::span(buffer)));
  if (length < 0 && errno == EAGAIN) return;
  if (length <= 0) {
    loop_.forget(notices_.get());
    return notices_.reset();
  }
  notice_reader_.feed({buffer, static_cast<std::size_t>(length)});
  while (auto frame = notice_reader_.next()) send(frame->kind, frame->payload);
}

void RemoteEnd::on_end() {
  loop_.forget(pidfd_.get());
  status_ = shell_status(await_end(child_));
  child_ = -1;
  end_all_descendants(Deadline::after(kEndOfRemoteDescendants));
}

// Passes on as many bytes as rank 0 takes now. The other bytes wait in pending_input_; the launcher
// limits how many bytes wait there.
void RemoteEnd::pass_input_on() {
  if (!input_) return;
  loop_.forget(input_.get());
  std::uint32_t taken = 0;
  while (!pending_input_.empty()) {
    const ssize_t written = write_some(input_.get(), as_bytes(pending_input_));
    if (written < 0 && errno == EAGAIN) break;
    if (written < 0) {
      pending_input_.clear();
      input_ends_ = true;
    }
    if (written <= 0) continue;
    pending_input_.erase(0, static_cast<std::size_t>(written));
    taken += static_cast<std::uint32_t>(written);
  }
  if (taken > 0) {
    ByteWriter writer;
    writer.put(taken);
    send(FrameKind::kInputTaken, to_string(writer.bytes()));
  }
  if (!pending_input_.empty()) {
    return loop_.watch(
        input_.get(), [this] { pass_input_on(); }, EPOLLOUT);
  }
  if (input_ends_) input_.reset();
}

// While the connection is full, the ranks' output is not read, so the ranks wait as they would for
// a full console. If more than kMaxNotices bytes wait for the connection, for instance timelines,
// the agent's messages are not read either.
void RemoteEnd::watch_for_room() {
  if (console_.empty() == watches_out_) {
    watches_out_ = !watches_out_;
    if (watches_out_) {
      loop_.watch(
          streams_.out.get(), [this] { console_.flush(); }, EPOLLOUT);
    } else {
      loop_.forget(streams_.out.get());
    }
  }
  watch_notices();
  if (console_.saturated() == held_up_) return;
  held_up_ = !held_up_;
  for (const Fd& pipe : pipes_) {
    if (pipe) loop_.change(pipe.get(), held_up_ ? 0U : EPOLLIN);
  }
}

void RemoteEnd::watch_notices() {
  if (!notices_) return;
  const bool hold = console_.num_pending() > kMaxNotices;
  if (std::exchange(notices_held_, hold) != hold) loop_.change(notices_.get(), hold ? 0U : EPOLLIN);
}

}  // namespace

int serve_remote_end(const std::string& version, const RunPart& run) {
  block_handled_signals();
  signal(SIGPIPE, SIG_IGN);
  adopt_orphans();
  return RemoteEnd(run, take_standard_streams()).serve(version);
}

}  // namespace paceline::launcher
