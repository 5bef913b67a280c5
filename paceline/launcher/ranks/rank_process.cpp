#include "paceline/launcher/ranks/rank_process.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <string_view>

#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/launcher/output/line_formatter.h"
#include "paceline/launcher/process/descendants.h"

namespace paceline::launcher {

RankProcess::RankProcess(int rank, ProcessSpec spec, Pipe out, std::unique_ptr<RankOutput> output,
                         const std::function<Process(const ProcessSpec&)>& start)
    : rank_(rank), output_(std::move(output)) {
  Pipe err = make_output_pipe();
  spec.stdout_fd = out.write_end.get();
  spec.stderr_fd = err.write_end.get();
  started_ = std::chrono::steady_clock::now();
  process_ = start(spec);
  output_->set_pipe(0, std::move(out.read_end));
  output_->set_pipe(1, std::move(err.read_end));
}

RankEnd RankProcess::collect() {
  const auto ended = std::chrono::steady_clock::now();
  kill(-process_.pid, SIGKILL);
  int status = 0;
  rusage usage{};
  while (wait4(process_.pid, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  end_ = rank_end(rank_, process_.pid, status, ended - started_);
  end_->at = ended;
  end_->peak_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  return *end_;
}

void RankProcess::send(int signal) const {
  if (running()) kill(-process_.pid, signal);
}

namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 500ms;  // time for processes that outlive their rank to end
constexpr int kPause = 5;          // between two looks at these processes, in ms

// Whether the child has ended; also true if there is no such child.
bool has_ended(pid_t child) {
  siginfo_t info{};
  const auto id = static_cast<id_t>(child);
  return waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
}

// Whether the child has ended with exit code 0. The child stays unreaped.
bool ended_well(pid_t child) {
  siginfo_t info{};
  const auto id = static_cast<id_t>(child);
  return waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 &&
         info.si_code == CLD_EXITED && info.si_status == 0;
}

// Reads /proc/PID/FILE; "" if that is not possible.
std::string text_of(pid_t process, const char* file) {
  std::ifstream stream(fmt::format("/proc/{}/{}", process, file));
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string name_of(pid_t process) {
  const std::string name = text_of(process, "comm");
  return neutralise(name.substr(0, name.find('\n')));
}

// Returns the value of RANK in the environment of `process`; -1 if the variable is not set.
int rank_of(pid_t process) {
  constexpr std::string_view kVariable("\0RANK=", 6);
  const std::string variables = '\0' + text_of(process, "environ");
  const auto at = variables.find(kVariable);
  int rank = -1;
  if (at == std::string::npos) return rank;
  const char* begin = variables.data() + at + kVariable.size();
  std::from_chars(begin, variables.data() + variables.size(), rank);
  return rank;
}

}  // namespace

bool RankProcess::handles(int signal) const {
  constexpr std::string_view kHandled = "\nSigCgt:\t";
  const std::string status = text_of(process_.pid, "status");
  const auto at = status.find(kHandled);
  if (at == std::string::npos) return false;
  std::uint64_t handled = 0;  // bit N - 1 stands for signal N
  std::from_chars(status.data() + at + kHandled.size(), status.data() + status.size(), handled, 16);
  return (handled >> (signal - 1) & 1) != 0;
}

// Returns the children of this process for which `belongs` returns true and which are still running
// when patience_ expires. patience_ is set when the first of these children is found.
template <class Belongs>
std::vector<pid_t> Leftovers::remaining(Belongs belongs) {
  for (;;) {
    std::vector<pid_t> pids = children_of(getpid());
    std::erase_if(pids, [&](pid_t pid) { return !belongs(pid) || has_ended(pid); });
    if (pids.empty()) return pids;
    if (!patience_) patience_ = Deadline::after(kPatience);
    if (patience_->expired()) return pids;
    poll(nullptr, 0, kPause);
  }
}

void Leftovers::look_at_group(int rank, pid_t process) {
  if (!ended_well(process)) return;
  for (const pid_t pid :
       remaining([process](pid_t pid) { return pid != process && getpgid(pid) == process; })) {
    add(rank, pid);
  }
}

void Leftovers::look_for_strays(const std::vector<pid_t>& spared) {
  for (const pid_t pid : remaining([&](pid_t pid) {
         return !known_.contains(pid) &&
                std::find(spared.begin(), spared.end(), pid) == spared.end();
       })) {
    add(rank_of(pid), pid);
  }
}

void Leftovers::add(int rank, pid_t process) {
  known_.insert(process);
  Left& left = by_rank_[rank];
  if (++left.count == 1) left.first = name_of(process);
}

std::string Leftovers::text() const {
  std::string text;
  for (const auto& [rank, left] : by_rank_) {
    text += fmt::format(
        "paceline: {} ended with exit code 0 but left {} process{} running ({}{}), which {} ended "
        "with the job: a job is over as soon as the main process of every rank has ended, so a "
        "program must not go into the background (&, setsid, daemon)\n",
        rank < 0 ? "a rank" : fmt::format("rank {}", rank), left.count, left.count == 1 ? "" : "es",
        left.count == 1 ? "" : "the first: ", left.first, left.count == 1 ? "was" : "were");
  }
  return text;
}

}  // namespace paceline::launcher
