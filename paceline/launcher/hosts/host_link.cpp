#include "paceline/launcher/hosts/host_link.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <sstream>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/launcher/output/line_formatter.h"
#include "paceline/launcher/output/rank_output.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

namespace {

constexpr std::size_t kReadSize = 64 << 10;
constexpr std::size_t kKeptWords = 2000;
constexpr int kDrainReads = 64;  // enough to empty a full pipe
constexpr int kFirstExchanges = 8;

}  // namespace

HostLink::Taken HostLink::nothing_taken(ssize_t length) {
  const bool later = length < 0 && errno == EAGAIN;
  return later ? Taken::kNothing : Taken::kEnd;
}

HostLink::HostLink(EventLoop& loop, HostRoute route, Handlers handlers)
    : loop_(loop), route_(std::move(route)), handlers_(std::move(handlers)), to_host_(-1) {
  Pipe in = make_pipe(), out = make_output_pipe(), err = make_output_pipe();
  ProcessSpec spec;
  spec.path = route_.program;
  spec.command = route_.command;
  spec.environment = inherited_environment();
  for (const std::string& name : route_.unset) spec.environment.erase(name);
  spec.stdin_fd = in.read_end.get();
  spec.stdout_fd = out.write_end.get();
  spec.stderr_fd = err.write_end.get();
  process_ = start_process(spec);
  in_ = std::move(in.write_end);
  out_ = std::move(out.read_end);
  err_ = std::move(err.read_end);
  to_host_ = Console(in_.get());
  loop_.watch(process_.pidfd.get(), [this] { on_process_end(); });
  loop_.watch(out_.get(), [this] { on_out(); });
  loop_.watch(err_.get(), [this] { on_err(); });
}

HostLink::~HostLink() {
  for (const Fd* fd : {&in_, &out_, &err_, &process_.pidfd}) {
    if (*fd) loop_.forget(fd->get());
  }
}

void HostLink::send(FrameKind kind, std::string_view payload) {
  if (!in_) return;
  to_host_.write(encode_frame(kind, payload));
  watch_for_room();
}

void HostLink::watch_for_room() {
  const bool wanted = in_ && !to_host_.empty() && to_host_.error() == 0;
  if (wanted == watches_in_) return;
  watches_in_ = wanted;
  if (!wanted) return loop_.forget(in_.get());
  loop_.watch(
      in_.get(),
      [this] {
        to_host_.flush();
        watch_for_room();
      },
      EPOLLOUT);
}

void HostLink::hold(bool held) {
  if (held == held_ || !out_) return;
  held_ = held;
  if (!held) silence_.heard();
  loop_.change(out_.get(), held ? 0U : EPOLLIN);
}

void HostLink::cut() {
  if (!status_) kill(-process_.pid, SIGKILL);
}

void HostLink::on_out() {
  if (read_out() == Taken::kEnd) loop_.forget(out_.get());
}

HostLink::Taken HostLink::read_out() {
  char buffer[kReadSize];
  const ssize_t length = read_ready(out_.get(), std::as_writable_bytes(std::span(buffer)));
  if (length <= 0) return nothing_taken(length);
  heard_ = Deadline::Clock::now();
  silence_.heard();
  try {
    take({buffer, static_cast<std::size_t>(length)});
  } catch (const Error& error) {
    err_text_ += std::string(error.what()) + "\n";
    cut();
    return Taken::kEnd;
  }
  return Taken::kSome;
}

void HostLink::take(std::string_view bytes) {
  reader_.feed(bytes);
  while (auto frame = reader_.next()) {
    if (frame->kind == FrameKind::kClock) {
      on_clock(frame->payload);
      continue;
    }
    if (frame->kind == FrameKind::kHello) on_hello();
    handlers_.on_frame(*frame);
  }
}

void HostLink::on_hello() {
  greeted_ = true;
  first_exchanges_left_ = kFirstExchanges;
  compare_clocks();
}

void HostLink::compare_clocks() {
  send(FrameKind::kClock, encode(ClockExchange{.asked = clock_reading()}));
}

void HostLink::on_clock(const std::string& payload) {
  ClockExchange exchange = decode_clock_exchange(payload);
  exchange.returned = clock_reading(heard_);
  clock_.take(exchange);
  if (--first_exchanges_left_ > 0) compare_clocks();
}

void HostLink::on_err() {
  if (read_err() == Taken::kEnd) loop_.forget(err_.get());
}

HostLink::Taken HostLink::read_err() {
  char buffer[kReadSize];
  const ssize_t length = read_ready(err_.get(), std::as_writable_bytes(std::span(buffer)));
  if (length <= 0) return nothing_taken(length);
  err_text_.append(buffer, static_cast<std::size_t>(length));
  if (err_text_.size() > kKeptWords) err_text_.erase(0, err_text_.size() - kKeptWords);
  return Taken::kSome;
}

// Reads the rest of the process's output from the pipes. Kills the other processes of its process
// group, because a script that stands in for ssh may have left children.
void HostLink::on_process_end() {
  loop_.forget(process_.pidfd.get());
  kill(-process_.pid, SIGKILL);
  const int status = await_end(process_.pid);
  for (int reads = 0; reads < kDrainReads && read_out() == Taken::kSome; ++reads) {
  }
  for (int reads = 0; reads < kDrainReads && read_err() == Taken::kSome; ++reads) {
  }
  status_ = shell_status(status);
  loop_.forget(out_.get());
  loop_.forget(err_.get());
  if (watches_in_) loop_.forget(in_.get());
  watches_in_ = false;
  in_.reset();
  handlers_.on_end();
}

std::string HostLink::last_lines() const {
  std::string text;
  std::istringstream lines(reader_.skipped() + err_text_);
  for (std::string line; std::getline(lines, line);) {
    while (line.ends_with('\r')) line.pop_back();  // ssh ends its own lines with \r\n
    if (!line.empty()) text += "  | " + neutralise(line) + "\n";
  }
  return text;
}

namespace {

constexpr std::size_t kInFlight = 256 << 10;
constexpr std::size_t kChunk = 16 << 10;

}  // namespace

RemoteInput::RemoteInput(EventLoop& loop, Fd stdin_fd, Send send)
    : loop_(loop), stdin_(std::move(stdin_fd)), send_(std::move(send)) {}

RemoteInput::~RemoteInput() {
  if (watched_) loop_.forget(stdin_.get());
}

void RemoteInput::taken(std::uint32_t bytes) {
  in_flight_ -= std::min<std::size_t>(in_flight_, bytes);
  watch();
}

void RemoteInput::tend() {
  if (is_file_) pump();
}

void RemoteInput::watch() {
  const bool wanted = stdin_ && !is_file_ && in_flight_ < kInFlight;
  if (wanted == watched_) return;
  watched_ = wanted;
  if (!wanted) return loop_.forget(stdin_.get());
  try {
    loop_.watch(stdin_.get(), [this] { pump(); });
  } catch (const Error&) {  // a plain file
    watched_ = false;
    is_file_ = true;
    pump();
  }
}

void RemoteInput::pump() {
  char buffer[kChunk];
  while (stdin_ && in_flight_ < kInFlight) {
    const ssize_t length = read_some(stdin_.get(), std::as_writable_bytes(std::span(buffer)));
    if (length < 0 && errno == EAGAIN) return;
    if (length <= 0) {
      if (watched_) loop_.forget(stdin_.get());
      watched_ = false;
      stdin_.reset();
      return send_(FrameKind::kInputEnd, {});
    }
    send_(FrameKind::kInput, {buffer, static_cast<std::size_t>(length)});
    in_flight_ += static_cast<std::size_t>(length);
    if (!is_file_) break;
  }
  if (!is_file_) watch();
}

}  // namespace paceline::launcher
