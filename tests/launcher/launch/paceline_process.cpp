#include "tests/launcher/launch/paceline_process.h"

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/output/rank_output.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

constexpr auto kLineDeadline = 20s;

}  // namespace

PacelineProcess::PacelineProcess(std::vector<std::string> arguments, Variables variables,
                                 std::string command) {
  arguments.insert(arguments.begin(), std::move(command));
  variables.emplace("TMPDIR", temporary_.path());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  Pipe out = make_output_pipe(), err = make_output_pipe();
  int in[2];
  if (pipe2(in, O_CLOEXEC) != 0) throw system_error("pipe2");
  const Fd in_end(in[0]);
  stdin_.reset(in[1]);
  started_ = std::chrono::steady_clock::now();
  pid_ = fork();
  if (pid_ < 0) throw system_error("fork");
  if (pid_ == 0) {
    dup2(in_end.get(), 0);
    dup2(out.write_end.get(), 1);
    dup2(err.write_end.get(), 2);
    for (const int signal : {SIGHUP, SIGINT, SIGQUIT}) {
      std::signal(signal, SIG_DFL);  // the tests may run in the background, where these are ignored
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    execv(argv[0], argv.data());
    _exit(99);
  }
  pipes_[0] = std::move(out.read_end);
  pipes_[1] = std::move(err.read_end);
}

PacelineProcess::~PacelineProcess() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void PacelineProcess::send(int signal) const { kill(pid_, signal); }

void PacelineProcess::write_stdin(const std::string& text) {
  if (write(stdin_.get(), text.data(), text.size()) < 0) throw system_error("write to stdin");
}

bool PacelineProcess::read_some(int which, Deadline deadline) {
  char buffer[65536];
  if (!wait_ready(pipes_[which].get(), POLLIN, deadline)) return false;
  const ssize_t length = read(pipes_[which].get(), buffer, sizeof buffer);
  if (length > 0) texts_[which].append(buffer, static_cast<std::size_t>(length));
  if (length <= 0) pipes_[which].reset();
  return length > 0;
}

std::vector<std::string> PacelineProcess::wait_for_lines(const std::string& start,
                                                         std::size_t count) {
  const Deadline deadline = Deadline::after(kLineDeadline);
  for (;;) {
    std::vector<std::string> found;
    std::istringstream lines(texts_[0]);
    for (std::string line; std::getline(lines, line) && !lines.eof();) {
      if (line.starts_with(start)) found.push_back(line.substr(start.size()));
    }
    if (found.size() >= count) return found;
    if (!pipes_[0] || !read_some(0, deadline)) {
      fail(ErrorCode::kTimeout, "{} of {} lines '{}...'; stdout so far: {}", found.size(), count,
           start, texts_[0]);
    }
  }
}

bool PacelineProcess::wait_for(const harness::SaysMatcher& message) {
  const Deadline deadline = Deadline::after(kLineDeadline);
  while (!testing::Value(texts_[1], message)) {
    if (!pipes_[1] || !read_some(1, deadline)) return false;
  }
  return true;
}

Outcome PacelineProcess::wait(std::chrono::milliseconds limit) {
  close_stdin();
  const Deadline deadline = Deadline::after(limit);
  while (pipes_[0] || pipes_[1]) {
    pollfd entries[2] = {{pipes_[0].get(), POLLIN, 0}, {pipes_[1].get(), POLLIN, 0}};
    poll(entries, 2, deadline.poll_timeout_ms());
    for (int i = 0; i < 2; ++i) {
      if (entries[i].revents != 0) read_some(i, deadline);
    }
    if (deadline.expired()) fail(ErrorCode::kTimeout, "paceline still runs: {}", texts_[1]);
  }
  const Fd pidfd = open_pidfd(pid_);
  if (!wait_ready(pidfd.get(), POLLIN, deadline)) fail(ErrorCode::kTimeout, "paceline still runs");
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  Outcome outcome;
  outcome.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  outcome.out = texts_[0];
  outcome.err = texts_[1];
  outcome.seconds = std::chrono::steady_clock::now() - started_;
  return outcome;
}

Outcome run_paceline(std::vector<std::string> arguments, PacelineProcess::Variables variables) {
  return PacelineProcess(std::move(arguments), std::move(variables)).wait();
}

bool all_gone(const std::vector<Fd>& pidfds, std::chrono::milliseconds limit) {
  const Deadline deadline = Deadline::after(limit);
  for (const Fd& pidfd : pidfds) {
    if (!wait_ready(pidfd.get(), POLLIN, deadline)) return false;
  }
  return true;
}

std::vector<Fd> open_pidfds(const std::vector<std::string>& pids) {
  std::vector<Fd> pidfds;
  for (const std::string& pid : pids) pidfds.push_back(open_pidfd(std::stoi(pid)));
  return pidfds;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string content_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace paceline::launcher
