#pragma once

// Processes that are stopped for a while, to test that time-outs do not count the time of the stop.

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

namespace paceline::harness {

// Runs `body` in a child process and returns its result. If the child stops itself, this function
// continues it after `pause` and then calls `afterwards` in this process. Requires: no other
// threads yet.
inline bool in_a_process(
    const std::function<bool()>& body, std::chrono::milliseconds pause = {},
    const std::function<void()>& afterwards = [] {}) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  if (WIFSTOPPED(status)) {
    std::this_thread::sleep_for(pause);
    kill(child, SIGCONT);
    afterwards();
    waitpid(child, &status, 0);
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Stops this process 50 ms from now, whatever it is doing then.
inline void stop_soon() {
  std::signal(SIGALRM, [](int) { raise(SIGSTOP); });
  const itimerval in_50_ms{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = 50'000}};
  setitimer(ITIMER_REAL, &in_50_ms, nullptr);
}

}  // namespace paceline::harness
