#include "apps/trial.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/core/deadline.h"
#include "paceline/core/error.h"
#include "paceline/core/exit_code.h"
#include "paceline/core/io.h"
#include "paceline/diagnosis/thread_census.h"
#include "paceline/process/process.h"
#include "paceline/process/rank_end.h"

namespace paceline::apps {
namespace {

using namespace std::chrono_literals;
using Seconds = std::chrono::duration<double>;

constexpr double kWarmUpSeconds = 1.0;
constexpr std::size_t kWarmUpSteps = 3, kFewestSteps = 5;
constexpr std::chrono::milliseconds kLookEvery{100};
constexpr const char* kNoSteps = "; does PROGRAM report its steps? (paceline advise --help)";
constexpr auto kEnd = 20s;  // after SIGTERM; the launcher ends its ranks after 2 s

struct Step {
  std::int64_t samples = 0;
  double seconds = 0, communication = 0;
};

// What one rank has written so far.
class StepReader {
 public:
  explicit StepReader(std::string path) : path_(std::move(path)) {}

  const std::vector<Step>& steps() const { return steps_; }
  std::int64_t parameter_bytes() const { return parameter_bytes_; }

  // Takes the lines that have been completed since the last call.
  void read() {
    std::ifstream file(path_, std::ios::binary);
    file.seekg(position_);
    for (std::string line; std::getline(file, line) && !file.eof();) {
      position_ = file.tellg();
      take(line);
    }
  }

 private:
  void take(const std::string& line) {
    const auto fields = nlohmann::json::parse(line, nullptr, false);
    if (!fields.is_object()) return;
    const auto number = [&](const char* name) {
      const auto field = fields.find(name);
      return field != fields.end() && field->is_number() ? field->get<double>() : 0.0;
    };
    const auto event = fields.value("event", nlohmann::json());
    if (event == "model") parameter_bytes_ = static_cast<std::int64_t>(number("parameter_bytes"));
    if (event != "step" || number("seconds") <= 0) return;
    steps_.push_back(
        {static_cast<std::int64_t>(number("samples")), number("seconds"), number("communication")});
  }

  std::string path_;
  std::streamoff position_ = 0;
  std::vector<Step> steps_;
  std::int64_t parameter_bytes_ = 0;
};

// The first steps are slower: caches fill, libraries choose their kernels.
std::size_t num_warm_up(const std::vector<Step>& steps) {
  double seconds = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (i >= kWarmUpSteps && seconds >= kWarmUpSeconds) return i;
    seconds += steps[i].seconds;
  }
  return steps.size();
}

class TrialRun {
 public:
  TrialRun(const TrialOptions& options, const Fd& signals)
      : options_(options), signals_(signals), first_rank_(step_file(0)) {}
  TrialRun(const TrialRun&) = delete;
  TrialRun& operator=(const TrialRun&) = delete;
  ~TrialRun() { stop(); }

  launch::Trial run() {
    trial_.combination = options_.combination;
    start();
    watch();
    stop();
    trial_.parameter_bytes = first_rank_.parameter_bytes();
    if (trial_.problem.empty()) evaluate();
    return trial_;
  }

 private:
  std::string step_file(int rank) const {
    return fmt::format("{}/rank-{:03}.jsonl", options_.folder, rank);
  }
  std::string output_file() const { return options_.folder + "/output"; }

  std::vector<std::string> launcher_command() const {
    std::vector<std::string> command = {
        "paceline",
        "run",
        fmt::format("--nproc-per-node={}", options_.combination.num_ranks),
        fmt::format("--threads-per-rank={}", options_.combination.num_threads),
        "--log-dir=" + options_.folder,
        "--shutdown-timeout=2",
        "--"};
    command.insert(command.end(), options_.command.begin(), options_.command.end());
    return command;
  }

  void start() {
    std::vector<std::string> command = launcher_command();
    std::vector<char*> argv;
    for (std::string& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    const Fd null_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const Fd output(open(output_file().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    if (!output) throw system_error("writing " + output_file());
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) throw system_error("starting paceline run");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != parent) _exit(1);
      setpgid(0, 0);  // a Ctrl-C is passed on by this process
      sigset_t none;
      sigemptyset(&none);
      sigprocmask(SIG_SETMASK, &none, nullptr);
      dup2(null_fd.get(), STDIN_FILENO);
      dup2(output.get(), STDOUT_FILENO);
      dup2(output.get(), STDERR_FILENO);
      setenv("PACELINE_STEP_LOG", options_.folder.c_str(), 1);
      execv("/proc/self/exe", argv.data());
      _exit(kExitNotFound);
    }
    pidfd_ = launch::open_pidfd(pid_);
  }

  // Until enough steps were seen, none comes any more, or the program ends.
  void watch() {
    std::size_t seen = 0;
    Deadline patience = Deadline::after(options_.patience);
    while (true) {
      const bool ended = wait_a_little();
      first_rank_.read();
      if (first_rank_.steps().size() > seen) {
        seen = first_rank_.steps().size();
        patience = Deadline::after(options_.patience);
      }
      if (is_enough()) {
        auto processes = launch::family_of(pid_);
        processes.erase(processes.begin());  // the launcher itself
        trial_.memory_bytes = launch::memory_of(processes);
        return;
      }
      if (ended) return judge_end();
      if (patience.expired()) {
        trial_.problem = fmt::format("no step for {:.0f} s; see paceline advise --help",
                                     Seconds(options_.patience).count());
        return;
      }
    }
  }

  // True when the launcher has ended.
  bool wait_a_little() const {
    pollfd fds[] = {{pidfd_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    poll_for(fds, kLookEvery);
    signalfd_siginfo info;
    if (fds[1].revents != 0 && read_record(signals_.get(), info)) {
      throw Interrupted{static_cast<int>(info.ssi_signo)};
    }
    return fds[0].revents != 0;
  }

  bool is_enough() const {
    const auto& steps = first_rank_.steps();
    double seconds = 0;
    std::size_t count = 0;
    for (std::size_t i = num_warm_up(steps); i < steps.size(); ++i, ++count) {
      seconds += steps[i].seconds;
    }
    return count >= kFewestSteps && seconds >= Seconds(options_.duration).count();
  }

  void judge_end() {
    const int code = stop();
    if (code != 0) {
      trial_.problem = fmt::format("failed with exit code {}: {}", code, last_words());
      trial_.lacked_memory = says("out of memory: the kernel") || says("std::bad_alloc");
    } else if (first_rank_.steps().size() < num_warm_up(first_rank_.steps()) + kFewestSteps) {
      trial_.problem =
          fmt::format("ended after {} steps, too few to measure{}", first_rank_.steps().size(),
                      first_rank_.steps().empty() ? kNoSteps : "");
    }
  }

  // Of the launcher's report (failure_report.h) the cause, else the program's last line, else its
  // first line, where the program wrote nothing or none of it ran.
  std::string last_words() const {
    constexpr std::string_view kCause = "  cause: ", kOwn = "  | ";
    std::ifstream file(output_file());
    std::string said, cause, own, last;
    for (std::string line; std::getline(file, line);) {
      if (said.empty() && line.starts_with("paceline") &&
          line.find("warning:") == std::string::npos) {
        said = line;
      }
      if (!said.empty() && line.starts_with(kCause)) cause = line.substr(kCause.size());
      if (!said.empty() && line.starts_with(kOwn) && line != kOwn) own = line.substr(kOwn.size());
      if (!line.empty()) last = line;
    }
    if (!cause.empty() || !own.empty()) return cause.empty() ? own : cause;
    return said.empty() ? last : said;
  }

  // In the launcher's report of a failure (failure_cause.h).
  bool says(std::string_view words) const {
    std::ifstream file(output_file());
    for (std::string line; std::getline(file, line);) {
      if (line.find(words) != std::string::npos) return true;
    }
    return false;
  }

  // Ends the launcher if it still runs; its exit code.
  int stop() {
    if (pid_ < 0) return 0;
    kill(pid_, SIGTERM);
    const Deadline end = Deadline::after(kEnd);
    if (!await(pidfd_.get(), POLLIN, end)) kill(pid_, SIGKILL);  // its agent ends the ranks
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  // The same steps of every rank. They go together, but some were stopped a step earlier.
  void evaluate() {
    const int num_ranks = options_.combination.num_ranks;
    std::vector<StepReader> ranks;
    std::size_t end = first_rank_.steps().size();
    for (int rank = 0; rank < num_ranks; ++rank) {
      ranks.emplace_back(step_file(rank)).read();
      end = std::min(end, ranks.back().steps().size());
    }
    const std::size_t begin = num_warm_up(first_rank_.steps());
    if (end < begin + kFewestSteps) {
      trial_.problem = fmt::format("a rank reported only {} steps, too few to measure", end);
      return;
    }
    trial_.num_steps = static_cast<std::int64_t>(end - begin);
    for (std::size_t i = begin; i < end; ++i) {
      trial_.seconds += first_rank_.steps()[i].seconds;
      for (const StepReader& rank : ranks) {
        trial_.samples += rank.steps()[i].samples;
        trial_.communication_seconds += rank.steps()[i].communication / num_ranks;
      }
    }
  }

  const TrialOptions& options_;
  const Fd& signals_;
  StepReader first_rank_;
  launch::Trial trial_;
  pid_t pid_ = -1;
  Fd pidfd_;
};

}  // namespace

launch::Trial run_trial(const TrialOptions& options, const Fd& signals) {
  return TrialRun(options, signals).run();
}

}  // namespace paceline::apps
