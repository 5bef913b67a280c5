#include "paceline/launcher/messages/job_socket.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <span>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/messages/running_jobs.h"

namespace paceline::launcher {
namespace {

constexpr std::size_t kLongestRequest = 255;        // in bytes, without the newline
constexpr std::size_t kMaxClients = 64;             // connections with an incomplete request
constexpr std::chrono::seconds kLongestSending{1};  // limit for one answer to a slow reader

}  // namespace

JobSocket::JobSocket(EventLoop& loop, int num_ranks, int num_threads, Handler handler,
                     const Say& say)
    : loop_(loop), handler_(std::move(handler)) {
  try {
    JobMark mark = mark_running_job(num_ranks, num_threads);
    name_ = std::move(mark.name);
    listener_ = std::move(mark.listener);
  } catch (const Error& error) {
    say(fmt::format("paceline: warning: ps, top, logs, stacks and stop cannot find this job: {}\n",
                    error.what()));
    return;
  }
  loop_.watch(listener_.get(), [this] { accept_all(); });
}

JobSocket::~JobSocket() {
  while (!clients_.empty()) close(clients_.begin()->first);
  if (listener_) loop_.forget(listener_.get());
}

// Accepts the waiting connections of this user and of root. If too many connections have not sent a
// whole request, drops one of them for each new connection.
void JobSocket::accept_all() {
  for (;;) {
    Fd connection(accept_one(listener_.get()));
    if (!connection) return;
    const auto peer = peer_credentials(connection.get());
    if (!peer || (peer->uid != getuid() && peer->uid != 0)) continue;
    if (clients_.size() >= kMaxClients) close(clients_.begin()->first);
    const int fd = connection.get();
    clients_[fd] = {std::move(connection), peer->pid, {}};
    loop_.watch(fd, [this, fd] { read(fd); });
  }
}

// Reads a part of a request, and passes the request to the handler once its line is complete.
void JobSocket::read(int fd) {
  Client& client = clients_.at(fd);
  char bytes[kLongestRequest + 1];
  const ssize_t length = receive_some(fd, std::as_writable_bytes(std::span(bytes)));
  if (length < 0 && errno == EAGAIN) return;
  if (length <= 0) return close(fd);
  client.text.append(bytes, static_cast<std::size_t>(length));
  const auto end = client.text.find('\n');
  if (end == std::string::npos && client.text.size() <= kLongestRequest) return;
  if (end == std::string::npos) return close(fd);
  JobRequest request;
  std::istringstream words(client.text.substr(0, end));
  for (std::string word; words >> word;) request.words.push_back(word);
  request.sender = client.sender;
  request.connection = std::move(client.connection);
  loop_.forget(fd);
  clients_.erase(fd);
  handler_(std::move(request));
}

void JobSocket::close(int fd) {
  loop_.forget(fd);
  clients_.erase(fd);
}

void send_answer(const JobRequest& request, const std::string& text) {
  try {
    send_all(request.connection, std::as_bytes(std::span(text)), Deadline::after(kLongestSending));
  } catch (const Error&) {
    // The process that sent the request has ended, or does not read the answer.
  }
}

void answer_stop(const JobRequest& request, pid_t supervisor) {
  send_answer(request, "stopping\n");
  if (getppid() != supervisor) return;  // the supervisor died; another process may have its pid
  kill(supervisor, SIGTERM);
  kill(supervisor, SIGCONT);  // if the supervisor is stopped, only now does it get SIGTERM
}

}  // namespace paceline::launcher
