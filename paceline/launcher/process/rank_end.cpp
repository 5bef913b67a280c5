#include "paceline/launcher/process/rank_end.h"

#include <cstring>

#include <fmt/format.h>
#include <sys/wait.h>

namespace paceline::launcher {

std::string describe(const RankEnd& end) {
  return end.signal != 0 ? fmt::format("killed by {}", signal_name(end.signal))
                         : fmt::format("exit code {}", end.exit_code);
}

RankEnd rank_end(int rank, pid_t pid, int wait_status, std::chrono::duration<double> after) {
  RankEnd end{.rank = rank, .pid = pid, .after = after};
  if (WIFSIGNALED(wait_status)) end.signal = WTERMSIG(wait_status);
  if (WIFEXITED(wait_status)) end.exit_code = WEXITSTATUS(wait_status);
  return end;
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : fmt::format("signal {}", signal);
}

}  // namespace paceline::launcher
