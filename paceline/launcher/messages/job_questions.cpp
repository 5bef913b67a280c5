#include "paceline/launcher/messages/job_questions.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <optional>
#include <span>

#include <poll.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/io.h"
#include "paceline/engine/core/peer_credentials.h"
#include "paceline/engine/core/send_queue.h"
#include "paceline/engine/core/socket.h"
#include "paceline/launcher/messages/running_jobs.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr std::size_t kMostAtOnce = 512;  // half of the descriptors that a process usually has
constexpr std::size_t kMostBytesOfAnswers = 64 << 20;  // of all answers together
constexpr milliseconds kPatienceWithJobs = 500ms;      // with a silent one while others wait
constexpr milliseconds kPauseBetweenTries =
    5ms;  // before a socket whose queue is full is tried again

// One socket that is asked, from the connection to the end of its answer. Nothing here waits.
class Question {
 public:
  Question(const std::string& mark, const std::string& request) : mark_(mark) {
    unsent_.add(as_bytes(request));
    unsent_.add(as_bytes("\n"));
    go_on();
  }

  const std::string& mark() const { return mark_; }
  const std::string& answer() const { return answer_; }
  bool is_over() const { return is_over_; }
  // Why the answer is not complete, once it is over.
  const std::optional<Error>& problem() const { return problem_; }
  bool is_patience_over() const { return patience_.expired(); }
  // What must be polled; before there is a connection poll() skips it.
  pollfd entry() const {
    const int events = POLLIN | (unsent_.empty() ? 0 : POLLOUT);
    return {socket_.get(), static_cast<short>(events), 0};
  }

  void go_on() {
    if (is_over_ || (!socket_ && !connect())) return;
    if (!unsent_.flush(socket_.get())) return end(ErrorCode::kPeerLost, std::strerror(errno));
    receive();
  }

 private:
  bool connect() {
    ConnectAttempt attempt = ConnectAttempt::to_unix(mark_);
    const int error = attempt.go_on();
    if (error == EAGAIN) return false;
    if (error != 0) {
      end(ErrorCode::kSystem, std::strerror(error));
      return false;
    }
    socket_ = attempt.take();
    const auto peer = peer_credentials(socket_.get());
    if (!peer || peer->pid != launcher_of(mark_)) {
      end(ErrorCode::kSystem, "another process than the one in its name listens there");
    } else if (peer->uid != getuid() && getuid() != 0) {
      end(ErrorCode::kSystem, "it belongs to another user");
    }
    return !is_over_;
  }

  void receive() {
    std::byte bytes[64 << 10];
    for (;;) {
      const ssize_t length = receive_some(socket_.get(), bytes);
      if (length < 0 && errno == EAGAIN) return;
      if (length < 0) return end(ErrorCode::kPeerLost, std::strerror(errno));
      if (length == 0) return end();
      answer_ += to_string(std::span(bytes).first(static_cast<std::size_t>(length)));
      if (answer_.size() > kMostBytesOfAnswers)
        return end(ErrorCode::kCorrupt, "its answer is too long");
    }
  }

  void end() {
    is_over_ = true;
    socket_.reset();
  }
  void end(ErrorCode code, const char* why) {
    problem_.emplace(code, fmt::format("asking the job at @{}: {}", mark_, why));
    end();
  }

  std::string mark_;
  Fd socket_;
  SendQueue unsent_;
  std::string answer_;
  std::optional<Error> problem_;
  bool is_over_ = false;
  const Deadline patience_ = Deadline::after(kPatienceWithJobs);
};

// Until one of them may go on.
void wait_for(const std::list<Question>& asked, Deadline deadline) {
  std::vector<pollfd> entries;
  milliseconds limit = kPatienceWithJobs;
  for (const Question& question : asked) {
    entries.push_back(question.entry());
    if (entries.back().fd < 0) limit = kPauseBetweenTries;
  }
  poll_for(entries, milliseconds(deadline.poll_timeout_ms(limit)));
}

}  // namespace

JobAnswers ask_jobs(const std::vector<std::string>& marks, const std::string& request,
                    Deadline deadline) {
  JobAnswers all;
  std::list<Question> asked;
  std::size_t num_bytes = 0;
  auto next = marks.begin();
  const auto give_up = [&](const Question& question) { all.silent.push_back(question.mark()); };
  for (;;) {
    asked.remove_if([&](Question& question) {
      question.go_on();
      if (!question.is_over()) return false;
      num_bytes += question.answer().size();
      if (!question.problem() && num_bytes <= kMostBytesOfAnswers) {
        all.answers.push_back({question.mark(), question.answer()});
      }
      return true;
    });
    if (deadline.expired()) break;
    if (next != marks.end()) {
      asked.remove_if([&](const Question& question) {
        if (question.is_patience_over()) give_up(question);
        return question.is_patience_over();
      });
    }
    const bool begins = next != marks.end() && asked.size() < kMostAtOnce;
    for (; next != marks.end() && asked.size() < kMostAtOnce; ++next) {
      asked.emplace_back(*next, request);
    }
    if (asked.empty()) break;
    if (!begins) wait_for(asked, deadline);
  }
  for (const Question& question : asked) give_up(question);
  all.silent.insert(all.silent.end(), next, marks.end());
  return all;
}

std::string ask_job(const std::string& mark, const std::string& request, Deadline deadline) {
  std::list<Question> asked;
  Question& question = asked.emplace_back(mark, request);
  while (!question.is_over()) {
    if (deadline.expired()) {
      fail(ErrorCode::kTimeout, "the job at @{} did not answer '{}' in time", mark, request);
    }
    wait_for(asked, deadline);
    question.go_on();
  }
  if (question.problem()) throw Error(*question.problem());
  return question.answer();
}

bool is_held_by_its_launcher(const std::string& mark) {
  ConnectAttempt attempt = ConnectAttempt::to_unix(mark);
  if (attempt.go_on() != 0) return false;
  const auto peer = peer_credentials(attempt.socket().get());
  return peer && peer->pid == launcher_of(mark);
}

}  // namespace paceline::launcher
