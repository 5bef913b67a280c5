// A rank for the tests of the fork server: seeded_program HOW.
//
//   restarts N  prints a line about itself, and fails until generation N
//   describe    prints the line; generation 1 also prints all that a program can see of its process
//   sleeps      prints the line and waits to be killed

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/rendezvous/launch_environment.h"

pid_t process_that_loaded();  // load_witness.cpp

namespace {

const pid_t own_statics_of = getpid();

int generation() { return std::atoi(std::getenv("TORCHELASTIC_RESTART_COUNT")); }

void say_who() {
  const auto who = paceline::detect_launch_environment();
  std::printf("generation %d pid %d loaded %d statics %d grown %d parent %d\n", generation(),
              getpid(), process_that_loaded(), own_statics_of, who.loaded_before, getppid());
  std::fflush(stdout);
}

void describe_process() {
  std::ifstream status("/proc/self/status");
  const std::set<std::string> wanted = {"Name",
                                        "Umask",
                                        "Threads",
                                        "SigPnd",
                                        "SigBlk",
                                        "SigIgn",
                                        "SigCgt",
                                        "NoNewPrivs",
                                        "CapEff",
                                        "State",
                                        "Cpus_allowed_list",
                                        "Mems_allowed_list"};
  for (std::string line; std::getline(status, line);) {
    if (wanted.contains(line.substr(0, line.find(':')))) std::printf("%s\n", line.c_str());
  }
  int death_signal = 0;
  prctl(PR_GET_PDEATHSIG, &death_signal);
  std::printf("own group %d, own session %d, dies with its parent by %d, nice %d\n",
              getpgrp() == getpid(), getsid(0) == getpid(), death_signal,
              getpriority(PRIO_PROCESS, 0));
  for (const int resource : {RLIMIT_NOFILE, RLIMIT_CORE, RLIMIT_STACK, RLIMIT_NPROC}) {
    rlimit limit{};
    getrlimit(static_cast<__rlimit_resource>(resource), &limit);
    std::printf("limit %d: %lu %lu\n", resource, limit.rlim_cur, limit.rlim_max);
  }
  std::printf("directory %s\n", std::filesystem::current_path().c_str());
  const pid_t child = waitpid(-1, nullptr, WNOHANG);
  std::printf("child %d, %s\n", child, std::strerror(errno));
}

// Leaves out the numbers of memory files and pipes, which differ from process to process.
void describe_descriptors() {
  std::multiset<std::string> seen;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    std::error_code gone;
    std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    target = target.substr(0, target.find('['));
    if (target.starts_with("/proc")) continue;  // the descriptor of this loop
    seen.insert((fd <= 2 ? std::to_string(fd) : "more") + " " + target + " flags " +
                std::to_string(fcntl(fd, F_GETFD)) + " " + std::to_string(fcntl(fd, F_GETFL)));
  }
  for (const std::string& one : seen) std::printf("descriptor %s\n", one.c_str());
}

void describe_environment(char** argv, char** envp) {
  for (; *argv != nullptr; ++argv) std::printf("argument %s\n", *argv);
  std::printf("main was given the environment: %d\n", envp == environ);
  std::set<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) variables.insert(*entry);
  for (const std::string& text : variables) std::printf("%s\n", text.c_str());
  const auto secret = paceline::find_job_secret(paceline::process_environment());
  std::printf("secret %d\n", secret.has_value());
}

}  // namespace

int main(int argc, char** argv, char** envp) {
  const std::string how = argv[1];
  say_who();
  if (how == "sleeps") {
    for (;;) pause();
  }
  if (how == "describe" && generation() == 1) {
    describe_process();
    describe_descriptors();
    describe_environment(argv, envp);
  }
  const int last = how == "restarts" && argc > 2 ? std::atoi(argv[2]) : 1;
  // The exit codes of two generations differ, because equal ones would be a crash loop.
  return generation() == last ? 0 : 3 + generation() % 2;
}
