// paceline stop: ends a job as SIGTERM to its launcher does, and waits for the end.

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <poll.h>

#include "paceline/core/deadline.h"
#include "paceline/core/error.h"
#include "paceline/core/socket.h"
#include "paceline/launch/job_socket.h"
#include "paceline/launch/process.h"

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/job_list.h"
#include "apps/message.h"
#include "apps/usage_error.h"

namespace paceline::apps {
namespace {

using namespace std::chrono_literals;

constexpr auto kLongestAnswer = 5s;
constexpr double kLongestWait = 86400;

}  // namespace

int stop_command(const Arguments& arguments) {
  CLI::App app(
      "Ends a job cleanly: its ranks get SIGTERM, and SIGKILL after the job's --shutdown-timeout. "
      "Returns when the job is over. Without JOB: the only job that runs.",
      "paceline stop");
  std::string job;
  double timeout = 60;
  app.add_option("JOB", job, "A job's id or launcher, as paceline ps shows them");
  app.add_option("--timeout", timeout, "Seconds to wait for its end [60]")
      ->check(CLI::Range(0.0, kLongestWait));
  app.footer("\nExamples:\n  paceline stop\n  paceline stop 1f0c93aa");
  const CommandLine line = split_around_word(app, arguments);
  if (!take_options(app, line)) {
    fmt::print("{}", app.help());
    return 0;
  }
  const JobEntry found = find_job(line.program);
  const Fd launcher = launch::open_pidfd(found.supervisor);
  launch::ask_job(found.socket, "stop", Deadline::after(kLongestAnswer));
  const auto limit =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(timeout));
  if (!wait_ready(launcher.get(), POLLIN, Deadline::after(limit))) {
    say(
        fmt::format("paceline stop: {} still runs after {:g} s (its --shutdown-timeout may be "
                    "longer)",
                    found.id, timeout));
    return kExitEnvironment;
  }
  fmt::print("{} has ended\n", found.id);
  return 0;
}

}  // namespace paceline::apps
