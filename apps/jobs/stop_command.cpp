// `paceline stop`: ends a job, as SIGTERM to its launcher would, and waits until it has ended.

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <poll.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/messages/running_jobs.h"
#include "paceline/launcher/process/process.h"

#include "apps/cli/commands.h"
#include "apps/cli/option_table.h"
#include "apps/jobs/job_list.h"

namespace paceline::apps {

namespace {

using namespace std::chrono_literals;

constexpr auto kLongestStopAnswer = 5s;
constexpr double kLongestWait = 86400;

void ask_to_stop(const JobEntry& entry, const Fd& launcher) {
  try {
    launcher::ask_job(entry.socket, "stop", Deadline::after(kLongestStopAnswer));
  } catch (const Error&) {
    // The request may fail because the stop of another agent has already begun to end this agent.
    // That is not an error.
    if (!wait_ready(launcher.get(), POLLIN, Deadline::after(kLongestStopAnswer))) throw;
  }
}

}  // namespace

int stop_command(const Arguments& arguments) {
  CLI::App app(
      "Ends a job cleanly: its ranks get SIGTERM, and SIGKILL after the job's --shutdown-timeout. "
      "Ends it on all hosts if the launcher that was started with --hosts runs on this machine. "
      "Returns when the job is over. Without JOB: the only running job.",
      "paceline stop");
  std::chrono::nanoseconds timeout = 60s;
  OptionTable table(app, /*has_variables=*/false);
  table.word("JOB", kJobHelp);
  table.value("--timeout", "S", "Seconds to wait for the job's end",
              seconds_target(timeout, kLongestWait));
  app.footer("\nExamples:\n  paceline stop\n  paceline stop 1f0c93aa");
  const auto words = table.read_line(arguments, 1);
  if (!words) return 0;
  const Job found = find_job(*words);
  const std::vector<JobEntry> asked =
      found.launcher ? std::vector<JobEntry>{*found.launcher} : found.agents;
  std::vector<Fd> launchers;
  for (const JobEntry& entry : asked) launchers.push_back(launcher::open_pidfd(entry.supervisor));
  for (std::size_t i = 0; i < asked.size(); ++i) ask_to_stop(asked[i], launchers[i]);
  const auto limit = Deadline::after(timeout);
  for (const Fd& launcher : launchers) {
    if (wait_ready(launcher.get(), POLLIN, limit)) continue;
    say(fmt::format(
        "paceline stop: {} is still running after {:g} s (its --shutdown-timeout may be "
        "longer)",
        found.id(), std::chrono::duration<double>(timeout).count()));
    return kExitEnvironment;
  }
  fmt::print("{} has ended\n", found.id());
  return 0;
}

}  // namespace paceline::apps
