#include "paceline/launch/job_socket.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "paceline/core/check.h"
#include "paceline/core/socket.h"
#include "paceline/launch/running_jobs.h"

namespace paceline::launch {
namespace {

constexpr std::size_t kLongestRequest = 255;
constexpr std::size_t kMostAsking = 64;
constexpr std::size_t kLongestAnswer = 64 << 20;
constexpr std::chrono::seconds kLongestTaking{1};  // for a reader that does not read

struct Address {
  sockaddr_un bytes{};
  socklen_t length = 0;

  explicit Address(const std::string& name) {
    bytes.sun_family = AF_UNIX;
    const std::size_t count = std::min(name.size(), sizeof bytes.sun_path - 1);
    std::memcpy(bytes.sun_path + 1, name.data(), count);  // after the zero that begins it
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + count);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

std::optional<ucred> peer_of(const Fd& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return {};
  return peer;
}

}  // namespace

JobSocket::JobSocket(EventLoop& loop, int num_ranks, int num_threads, Handler handler)
    : loop_(loop), handler_(std::move(handler)) {
  listener_ = mark_running_job(num_ranks, num_threads);
  if (!listener_) return;
  name_ = mark_name(getpid(), num_ranks, num_threads);
  loop_.watch(listener_.get(), [this] { accept_all(); });
}

JobSocket::~JobSocket() {
  while (!asking_.empty()) close(asking_.begin()->first);
  if (listener_) loop_.forget(listener_.get());
}

void JobSocket::accept_all() {
  for (;;) {
    Fd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection) return;
    const auto peer = peer_of(connection);
    if (!peer || (peer->uid != getuid() && peer->uid != 0)) continue;
    if (asking_.size() >= kMostAsking) close(asking_.begin()->first);
    const int fd = connection.get();
    asking_[fd] = {std::move(connection), peer->pid, {}};
    loop_.watch(fd, [this, fd] { read(fd); });
  }
}

void JobSocket::read(int fd) {
  Asking& asking = asking_.at(fd);
  char bytes[kLongestRequest + 1];
  const ssize_t length = ::read(fd, bytes, sizeof bytes);
  if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (length <= 0) return close(fd);
  asking.text.append(bytes, static_cast<std::size_t>(length));
  const auto end = asking.text.find('\n');
  if (end == std::string::npos && asking.text.size() <= kLongestRequest) return;
  if (end == std::string::npos) return close(fd);
  JobRequest request;
  std::istringstream words(asking.text.substr(0, end));
  for (std::string word; words >> word;) request.words.push_back(word);
  request.sender = asking.sender;
  request.connection = std::move(asking.connection);
  loop_.forget(fd);
  asking_.erase(fd);
  handler_(std::move(request));
}

void JobSocket::close(int fd) {
  loop_.forget(fd);
  asking_.erase(fd);
}

void send_answer(const JobRequest& request, const std::string& text) {
  try {
    send_all(request.connection, std::as_bytes(std::span(text)), Deadline::after(kLongestTaking));
  } catch (const Error&) {
    // Whoever asked has gone.
  }
}

std::string ask_job(const std::string& name, const std::string& request, Deadline deadline) {
  const Address address(name);
  const Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) throw system_error("socket()");
  if (connect(socket.get(), address.get(), address.length) != 0) {
    throw system_error(fmt::format("asking the job at @{}", name));
  }
  // Anybody can take a name; only this user's launcher is believed. Root may ask for anybody's.
  const auto peer = peer_of(socket);
  if (!peer || (peer->uid != getuid() && getuid() != 0)) {
    fail(ErrorCode::kSystem, "the job at @{} belongs to another user", name);
  }
  const std::string line = request + "\n";
  send_all(socket, std::as_bytes(std::span(line)), deadline);
  std::string answer;
  char bytes[65536];
  while (answer.size() < kLongestAnswer) {
    if (!wait_ready(socket.get(), POLLIN, deadline)) {
      fail(ErrorCode::kTimeout, "the job at @{} did not answer '{}' in time", name, request);
    }
    const ssize_t length = ::read(socket.get(), bytes, sizeof bytes);
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) break;
    answer.append(bytes, static_cast<std::size_t>(length));
  }
  return answer;
}

}  // namespace paceline::launch
