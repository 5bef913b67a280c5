#include "paceline/launcher/messages/running_jobs.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <dirent.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/process/descendants.h"

namespace paceline::launcher {

namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr std::size_t kMaxAtOnce = 512;            // half of the usual limit of descriptors
constexpr std::size_t kMaxAnswerBytes = 64 << 20;  // total size of the answers
constexpr milliseconds kPatienceWithJobs = 500ms;  // limit for an answer while jobs wait
constexpr milliseconds kPauseBetweenTries = 5ms;   // while a socket's queue is full

// The dialogue with one socket, from the connection to the end of its answer. No member function
// waits.
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
  // Once is_over(): why the answer is not complete; nullopt if it is complete.
  const std::optional<Error>& problem() const { return problem_; }
  bool is_patience_over() const { return patience_.expired(); }
  // The entry for poll(), which skips it before there is a connection.
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
      end(ErrorCode::kSystem,
          "the process that listens on this socket does not have the pid in the socket's name");
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
      if (answer_.size() > kMaxAnswerBytes)
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

// Waits until go_on() of one of the questions may make progress.
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
      if (!question.problem() && num_bytes <= kMaxAnswerBytes) {
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
    const bool begins = next != marks.end() && asked.size() < kMaxAtOnce;
    for (; next != marks.end() && asked.size() < kMaxAtOnce; ++next) {
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

namespace {

constexpr const char* kPrefix = "@paceline-job/";  // '@': the leading zero in /proc/net/unix
constexpr int kBacklog = 128;
constexpr std::size_t kRandomBytes = 8;

// Returns false when the text is not the name of a mark.
bool parse_mark(const std::string& mark, RunningJob& job) {
  int length = 0;
  const int fields = std::sscanf(mark.c_str(), "paceline-job/%d/%dx%d/%*16[0-9a-f]%n",
                                 &job.launcher, &job.num_ranks, &job.num_threads, &length);
  return fields == 3 && static_cast<std::size_t>(length) == mark.size() && job.launcher > 0 &&
         job.num_ranks >= 0 && job.num_threads >= 0;
}

// A listening socket whose name is that of a mark.
struct Mark {
  std::string name;
  pid_t launcher = -1;
  unsigned long inode = 0;
};

// Reads a line of /proc/net/unix: Num, RefCount, Protocol, Flags, Type, St, Inode, Path. Returns
// nullopt unless the socket listens, because connections to a mark have the same name as the mark.
std::optional<Mark> mark_in(const std::string& line) {
  constexpr unsigned kListens = 0x10000, kStream = 1;  // __SO_ACCEPTCON, SOCK_STREAM
  unsigned flags = 0, type = 0;
  Mark mark;
  const auto at = line.find(kPrefix);
  if (at == std::string::npos ||
      std::sscanf(line.c_str(), "%*[^:]: %*x %*x %x %x %*x %lu", &flags, &type, &mark.inode) != 3) {
    return {};
  }
  mark.name = line.substr(at + 1);
  mark.launcher = launcher_of(mark.name);
  if ((flags & kListens) == 0 || type != kStream || mark.launcher <= 0) return {};
  return mark;
}

enum class Holder { kOwn, kOtherUser, kUnknown, kNone };

// Finds out from /proc which process holds a mark.
class Holders {
 public:
  Holder holder_of(const Mark& mark) {
    auto known = processes_.find(mark.launcher);
    if (known == processes_.end()) known = processes_.emplace(mark.launcher, look(mark)).first;
    const Process& process = known->second;
    if (process.holder != Holder::kOwn) return process.holder;
    return process.sockets.contains(mark.inode) ? Holder::kOwn : Holder::kNone;
  }

 private:
  struct Process {
    Holder holder = Holder::kNone;
    std::set<unsigned long> sockets;  // kOwn: all sockets of the process
  };

  static Process look(const Mark& mark) {
    const std::string folder = fmt::format("/proc/{}", mark.launcher);
    const auto user = user_of(folder);
    if (!user) return {Holder::kNone, {}};
    if (*user != geteuid() && geteuid() != 0) return {Holder::kOtherUser, {}};
    const std::unique_ptr<DIR, int (*)(DIR*)> descriptors(opendir((folder + "/fd").c_str()),
                                                          closedir);
    if (!descriptors) return {Holder::kUnknown, {}};
    Process process{Holder::kOwn, {}};
    while (const dirent* entry = readdir(descriptors.get())) {
      char target[64] = {};
      unsigned long inode = 0;
      if (readlinkat(dirfd(descriptors.get()), entry->d_name, target, sizeof target - 1) > 0 &&
          std::sscanf(target, "socket:[%lu]", &inode) == 1) {
        process.sockets.insert(inode);
      }
    }
    return process;
  }

  // The effective user of the process; nullopt when there is no such process.
  static std::optional<uid_t> user_of(const std::string& folder) {
    std::ifstream status(folder + "/status");
    for (std::string line; std::getline(status, line);) {
      uid_t user = 0;
      if (std::sscanf(line.c_str(), "Uid: %*u %u", &user) == 1) return user;
    }
    return {};
  }

  std::map<pid_t, Process> processes_;
};

// All marks: the first mark of every process in the order of pids, then the second mark of every
// process, and so on.
std::vector<Mark> marks_in_turn() {
  std::map<pid_t, std::map<std::string, Mark>> of_process;
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    if (auto mark = mark_in(line)) of_process[mark->launcher].emplace(mark->name, *mark);
  }
  std::vector<Mark> marks;
  while (!of_process.empty()) {
    for (auto process = of_process.begin(); process != of_process.end();) {
      auto& left = process->second;
      marks.push_back(std::move(left.extract(left.begin()).mapped()));
      process = left.empty() ? of_process.erase(process) : std::next(process);
    }
  }
  return marks;
}

}  // namespace

JobMark mark_running_job(int num_ranks, int num_threads) {
  JobMark mark;
  mark.name = fmt::format("{}{}/{}x{}/{}", kPrefix + 1, getpid(), num_ranks, num_threads,
                          random_hex(kRandomBytes));
  mark.listener = listen_unix(mark.name, kBacklog);
  return mark;
}

std::vector<std::string> find_marks() {
  Holders holders;
  std::vector<std::string> names;
  for (Mark& mark : marks_in_turn()) {
    if (holders.holder_of(mark) != Holder::kNone) names.push_back(std::move(mark.name));
  }
  return names;
}

std::vector<std::string> find_own_marks() {
  Holders holders;
  std::vector<std::string> names, unknown;
  for (Mark& mark : marks_in_turn()) {
    const Holder holder = holders.holder_of(mark);
    if (holder == Holder::kOwn) names.push_back(std::move(mark.name));
    if (holder == Holder::kUnknown) unknown.push_back(std::move(mark.name));
  }
  names.insert(names.end(), unknown.begin(), unknown.end());
  return names;
}

pid_t launcher_of(const std::string& mark) {
  RunningJob job;
  return parse_mark(mark, job) ? job.launcher : -1;
}

std::vector<RunningJob> find_running_jobs() {
  std::map<pid_t, RunningJob> jobs;
  for (const std::string& mark : find_marks()) {
    RunningJob job;
    if (!parse_mark(mark, job) || job.launcher == getpid() || jobs.contains(job.launcher)) continue;
    if (job.num_ranks == 0) continue;  // all its ranks run on other hosts
    if (!is_held_by_its_launcher(mark)) continue;
    std::set<int> cpus;
    for (const pid_t rank : children_of(job.launcher)) {
      for (const int cpu : allowed_cpus(rank)) cpus.insert(cpu);
    }
    if (cpus.empty()) continue;
    job.cpus.assign(cpus.begin(), cpus.end());
    jobs.emplace(job.launcher, std::move(job));
  }
  std::vector<RunningJob> all;
  for (auto& [launcher, job] : jobs) all.push_back(std::move(job));
  return all;
}

}  // namespace paceline::launcher
