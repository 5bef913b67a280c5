#include "paceline/launcher/spawn/spawn.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <sys/prctl.h>
#include <unistd.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/launcher/diagnosis/failure_report.h"
#include "paceline/launcher/output/rank_output.h"
#include "paceline/launcher/placement/placement.h"
#include "paceline/launcher/process/event_loop.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/ranks/job_services.h"

namespace paceline {

namespace {

using namespace launcher;

// The longest message about an exception. It fits into a pipe, so a rank can always send it without
// waiting.
constexpr std::size_t kMaxMessage = 32 << 10;

struct SpawnedRank {
  pid_t pid = -1;
  Fd pidfd;
  Fd message;  // a pipe: the code of the rank's Error as one byte, then its text
  std::optional<RankEnd> end;
};

void send_message(int fd, ErrorCode code, std::string text) {
  text.resize(std::min(text.size(), kMaxMessage));
  text.insert(text.begin(), static_cast<char>(code));
  if (!write_whole(fd, as_bytes(text))) _exit(1);
}

// Reads the bytes that have arrived, and does not wait for the end: a process that the rank left
// running may keep the pipe open.
std::size_t read_message(const Fd& pipe, std::span<char> into) {
  std::size_t length = 0;
  ssize_t got = 0;
  do {
    got = read_ready(pipe.get(), std::as_writable_bytes(into.subspan(length)));
    length += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  } while (got > 0);
  return length;
}

int run_body(const std::function<void(int)>& body, int rank, int message_fd) {
  try {
    body(rank);
    return 0;
  } catch (const Error& error) {
    send_message(message_fd, error.code(), error.what());
  } catch (...) {
    send_message(message_fd, ErrorCode::kAborted, describe_current_exception());
  }
  return 1;
}

class SpawnedJob {
 public:
  SpawnedJob(int num_ranks, const SpawnOptions& options) : options_(options) {
    job_.num_local_ranks = num_ranks;
    job_.run_id = random_hex(8);
  }
  SpawnedJob(const SpawnedJob&) = delete;
  SpawnedJob& operator=(const SpawnedJob&) = delete;
  ~SpawnedJob() { kill_all(); }

  void run(const std::function<void(int)>& body);

 private:
  void start(int rank, const std::function<void(int)>& body, const JobServices& services,
             const Placement& plan);
  void wait();
  void collect(SpawnedRank& rank, int number);
  void signal_all(int signal);
  void kill_all();
  std::vector<int> running() const;
  [[noreturn]] void throw_failure();

  const SpawnOptions& options_;
  LaunchOptions job_;
  EventLoop loop_;
  std::vector<SpawnedRank> ranks_;
  std::optional<RankEnd> culprit_;
  std::vector<int> timed_out_;
};

void SpawnedJob::run(const std::function<void(int)>& body) {
  JobServices services(job_);
  const Placement plan =
      plan_placement(discover_topology(),
                     {.num_local_ranks = job_.num_local_ranks, .binding = {.to = BindTo::kNone}});
  std::fflush(nullptr);  // otherwise every rank would also print the text that is buffered here
  for (int rank = 0; rank < job_.num_local_ranks; ++rank) start(rank, body, services, plan);
  services.start_store();
  wait();
  if (culprit_ || !timed_out_.empty()) throw_failure();
}

void SpawnedJob::start(int rank, const std::function<void(int)>& body, const JobServices& services,
                       const Placement& plan) {
  Pipe message = make_output_pipe();
  const Fd secret = services.make_secret_fd();
  JobAddresses addresses = services.addresses();
  addresses.secret_fd = secret.get();
  const Environment environment =
      worker_environment(inherited_environment(), job_, job_.place(), rank, plan, addresses);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw system_error("spawn: starting a rank");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(128 + SIGKILL);
    clearenv();  // also removes variables that the rank must not inherit
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    const int status = run_body(body, rank, message.write_end.get());
    std::fflush(nullptr);
    _exit(status);  // does not call the parent's atexit() functions
  }
  ranks_.push_back({pid, open_pidfd(pid), std::move(message.read_end), {}});
  loop_.watch(ranks_.back().pidfd.get(), [this, rank] { collect(ranks_[rank], rank); });
}

void SpawnedJob::wait() {
  Deadline deadline = Deadline::after(options_.timeout);
  bool stopping = false;
  while (!running().empty()) {
    loop_.turn(deadline);
    if (deadline.expired()) {
      if (!stopping) timed_out_ = running();
      return kill_all();
    }
    if (culprit_ && options_.stop_others && !stopping) {
      stopping = true;
      deadline = Deadline::after(options_.grace);
      signal_all(SIGTERM);
      signal_all(SIGCONT);
    }
  }
}

void SpawnedJob::collect(SpawnedRank& rank, int number) {
  loop_.forget(rank.pidfd.get());
  rank.pidfd.reset();
  rank.end = rank_end(number, rank.pid, await_end(rank.pid), {});
  if (rank.end->failed() && !culprit_) culprit_ = rank.end;
}

std::vector<int> SpawnedJob::running() const {
  std::vector<int> numbers;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].end) numbers.push_back(static_cast<int>(i));
  }
  return numbers;
}

void SpawnedJob::signal_all(int signal) {
  for (const int number : running()) kill(ranks_[number].pid, signal);
}

void SpawnedJob::kill_all() {
  signal_all(SIGKILL);
  for (const int number : running()) {
    const pid_t pid = ranks_[number].pid;
    ranks_[number].end = rank_end(number, pid, await_end(pid), {});
  }
}

void SpawnedJob::throw_failure() {
  const int count = job_.num_local_ranks;
  if (!culprit_) {
    fail(ErrorCode::kTimeout,
         "spawn: of {} ranks, {} did not end within {} ms and had to be killed", count,
         ranks_text(timed_out_), options_.timeout.count());
  }
  std::string text(kMaxMessage + 1, '\0');
  const std::size_t length = read_message(ranks_[culprit_->rank].message, text);
  if (length > 0) {
    text.resize(length);
    fail(static_cast<ErrorCode>(text[0]), "spawn: rank {} of {} failed first: {}", culprit_->rank,
         count, text.substr(1));
  }
  const std::string hint = hint_for(*culprit_);
  fail(ErrorCode::kAborted, "spawn: rank {} of {} failed first: {}{}", culprit_->rank, count,
       describe(*culprit_), hint.empty() ? "" : fmt::format(" ({})", hint));
}

}  // namespace

void spawn(int num_ranks, const std::function<void(int rank)>& body, const SpawnOptions& options) {
  check(num_ranks >= 1, "spawn: {} ranks; at least 1 is needed", num_ranks);
  check(!options.as_threads, "spawn: ranks as threads need a body that takes its ProcessGroup");
  SpawnedJob(num_ranks, options).run(body);
}

namespace {

// The error of the rank that failed first; the errors of other ranks are its consequences.
class FirstFailure {
 public:
  void record(int rank, const Error& error) {
    const std::lock_guard lock(mutex_);
    if (!error_)
      error_.emplace(error.code(),
                     fmt::format("spawn: rank {} failed first: {}", rank, error.what()));
  }
  void rethrow() const {
    if (error_) throw Error(*error_);
  }

 private:
  std::mutex mutex_;  // guards error_ while the ranks run
  std::optional<Error> error_;
};

void run_rank(ProcessGroup& group, const std::function<void(ProcessGroup&)>& body,
              FirstFailure& first) {
  try {
    body(group);
    return;
  } catch (const Error& error) {
    first.record(group.rank(), error);
  } catch (...) {
    first.record(group.rank(), Error(ErrorCode::kAborted, describe_current_exception()));
  }
  group.abort("its function ended with an exception");
}

void spawn_threads(int num_ranks, const std::function<void(ProcessGroup&)>& body,
                   const SpawnOptions& options) {
  const auto store = std::make_shared<MemoryStore>();
  const auto secret = Secret::generate();
  std::vector<int> ranks(static_cast<std::size_t>(num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  FirstFailure first;
  std::vector<std::jthread> threads;
  for (const int rank : ranks) {
    threads.push_back(start_thread("rank-" + std::to_string(rank), [&, rank] {
      LaunchEnvironment environment;
      environment.rank = environment.local_rank = rank;
      environment.world_size = environment.local_world_size = num_ranks;
      try {
        EngineGroup group(
            {environment, store, secret}, "world", ranks,
            {.timeout = options.timeout, .link = {.transport = TransportKind::kLoopback}});
        run_rank(group, body, first);
      } catch (const Error& error) {
        first.record(rank, error);
      } catch (...) {
        first.record(rank, Error(ErrorCode::kSystem, describe_current_exception()));
      }
    }));
  }
  threads.clear();
  first.rethrow();
}

}  // namespace

void spawn(int num_ranks, const std::function<void(ProcessGroup& group)>& body,
           const SpawnOptions& options) {
  check(num_ranks >= 1, "spawn: {} ranks; at least 1 is needed", num_ranks);
  if (options.as_threads) {
    spawn_threads(num_ranks, body, options);
    return;
  }
  spawn(
      num_ranks, [&](int) { body(*init_process_group()); }, options);
}

}  // namespace paceline
