#include "apps/advise/trial.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/launcher/diagnosis/thread_census.h"
#include "paceline/launcher/process/process.h"

namespace paceline::apps {

namespace {

using namespace std::chrono_literals;

constexpr auto kEnd = 20s;  // from SIGTERM to SIGKILL; the launcher ends its ranks after 2 s

std::vector<std::string> launcher_command(const LauncherRunOptions& options) {
  std::vector<std::string> command = {"paceline",
                                      "run",
                                      fmt::format("--nproc-per-node={}", options.num_ranks),
                                      fmt::format("--threads-per-rank={}", options.num_threads),
                                      "--log-dir=" + options.folder,
                                      "--shutdown-timeout=2",
                                      "--"};
  command.insert(command.end(), options.command.begin(), options.command.end());
  return command;
}

}  // namespace

Fd block_ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (!launcher::stays_ignored(signal)) sigaddset(&set, signal);
  }
  sigprocmask(SIG_BLOCK, &set, nullptr);
  Fd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) throw system_error("signalfd()");
  return fd;
}

LauncherRun::LauncherRun(const LauncherRunOptions& options, const Fd& signals)
    : folder_(options.folder), signals_(signals) {
  start(options);
}

LauncherRun::~LauncherRun() { stop(); }

void LauncherRun::start(const LauncherRunOptions& options) {
  std::vector<std::string> command = launcher_command(options);
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  const Fd null_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Fd output(open(output_file().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!output) throw system_error("writing " + output_file());
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) throw system_error("starting paceline run");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    setpgid(0, 0);  // Ctrl-C reaches only the parent, which then stops this process
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    dup2(null_fd.get(), STDIN_FILENO);
    dup2(output.get(), STDOUT_FILENO);
    dup2(output.get(), STDERR_FILENO);
    for (const auto& [name, value] : options.variables) setenv(name.c_str(), value.c_str(), 1);
    execv("/proc/self/exe", argv.data());
    _exit(kExitNotFound);
  }
  pidfd_ = launcher::open_pidfd(pid_);
}

bool LauncherRun::wait(std::chrono::milliseconds time) const {
  pollfd fds[] = {{pidfd_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
  poll_for(fds, time);
  signalfd_siginfo info;
  if (fds[1].revents != 0 && read_record(signals_.get(), info))
    throw Interrupted{static_cast<int>(info.ssi_signo)};
  return fds[0].revents != 0;
}

int LauncherRun::stop() {
  if (pid_ < 0) return exit_code_;
  kill(pid_, SIGTERM);
  const Deadline end = Deadline::after(kEnd);
  if (!await(pidfd_.get(), POLLIN, end)) kill(pid_, SIGKILL);  // the agent ends the ranks
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return exit_code_;
}

std::string LauncherRun::failure_reason() const {
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

bool LauncherRun::says(std::string_view words) const {
  std::ifstream file(output_file());
  for (std::string line; std::getline(file, line);) {
    if (line.find(words) != std::string::npos) return true;
  }
  return false;
}

namespace {

using Seconds = std::chrono::duration<double>;

constexpr double kWarmUpSeconds = 1.0;
constexpr std::size_t kWarmUpSteps = 3, kFewestSteps = 5;
constexpr std::chrono::milliseconds kReadStepsEvery{100};
constexpr std::chrono::seconds kMeasureMemoryEvery{1};
constexpr const char* kNoSteps = "; does PROGRAM report its steps? (paceline advise --help)";

struct Step {
  std::int64_t samples = 0;
  double seconds = 0, communication = 0;
};

// The step log that one rank has written so far.
class StepReader {
 public:
  explicit StepReader(std::string path) : path_(std::move(path)) {}

  const std::vector<Step>& steps() const { return steps_; }
  std::int64_t parameter_bytes() const { return parameter_bytes_; }

  // Reads the lines that were completed since the last call.
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
    const auto fields = parse_json_or_discard(line);
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

// The number of steps at the beginning that are not measured: they are slower, because caches fill
// and libraries choose their kernels.
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

  launcher::Trial run() {
    trial_.combination = options_.combination;
    LauncherRun launcher({.command = options_.command,
                          .num_ranks = options_.combination.num_ranks,
                          .num_threads = options_.combination.num_threads,
                          .folder = options_.folder,
                          .variables = {{"PACELINE_STEP_LOG", options_.folder}}},
                         signals_);
    watch(launcher);
    launcher.stop();
    trial_.parameter_bytes = first_rank_.parameter_bytes();
    if (trial_.problem.empty()) evaluate();
    return trial_;
  }

 private:
  std::string step_file(int rank) const {
    return fmt::format("{}/rank-{:03}.jsonl", options_.folder, rank);
  }

  // Returns when enough steps have been read, when the next one takes too long, or when the program
  // ends.
  void watch(LauncherRun& launcher) {
    std::size_t seen = 0;
    Deadline patience = Deadline::after(options_.patience);
    while (true) {
      const bool ended = launcher.wait(kReadStepsEvery);
      first_rank_.read();
      if (first_rank_.steps().size() > seen) {
        seen = first_rank_.steps().size();
        patience = Deadline::after(options_.patience);
        measure_memory(launcher);  // now, because the program may end by itself at any time
      }
      if (is_enough()) return;
      if (ended) return judge_end(launcher);
      if (patience.expired()) {
        trial_.problem = fmt::format("no step for {:.0f} s; see paceline advise --help",
                                     Seconds(options_.patience).count());
        return;
      }
    }
  }

  // Measures the memory of all ranks and keeps the maximum. Measures at most once a second, because
  // the kernel examines every page.
  void measure_memory(const LauncherRun& launcher) {
    if (!next_measurement_.expired()) return;
    next_measurement_ = Deadline::after(kMeasureMemoryEvery);
    auto processes = launcher::family_of(launcher.pid());
    if (!processes.empty()) processes.erase(processes.begin());  // leaves out the launcher itself
    trial_.memory_bytes = std::max(trial_.memory_bytes, launcher::memory_of(processes));
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

  void judge_end(LauncherRun& launcher) {
    const int code = launcher.stop();
    if (code != 0) {
      trial_.problem = fmt::format("failed with exit code {}: {}", code, launcher.failure_reason());
      trial_.lacked_memory =
          launcher.says("out of memory: the kernel") || launcher.says("std::bad_alloc");
    } else if (first_rank_.steps().size() < num_warm_up(first_rank_.steps()) + kFewestSteps) {
      trial_.problem =
          fmt::format("ended after {} steps, too few to measure{}", first_rank_.steps().size(),
                      first_rank_.steps().empty() ? kNoSteps : "");
    }
  }

  // Evaluates the same steps of every rank. All ranks make the same steps, but some may have been
  // stopped one step earlier.
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
  launcher::Trial trial_;
  Deadline next_measurement_ = Deadline::after(std::chrono::nanoseconds(0));
};

}  // namespace

launcher::Trial run_trial(const TrialOptions& options, const Fd& signals) {
  return TrialRun(options, signals).run();
}

}  // namespace paceline::apps
