// `paceline stacks`: prints the stacks of a job's ranks, or of the threads of a process.

#include <cstdio>
#include <limits>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/launcher/diagnosis/stack_reader.h"
#include "paceline/launcher/messages/running_jobs.h"

#include "apps/cli/commands.h"
#include "apps/cli/option_table.h"
#include "apps/cli/option_value.h"
#include "apps/jobs/job_list.h"
#include "apps/jobs/process_stacks.h"
#include "apps/jobs/python_stacks.h"

namespace paceline::apps {

namespace {

using namespace std::chrono_literals;

// The seconds after which SIGALRM ends this process while it reads stacks: a process that is
// blocked in the kernel may never stop for ptrace.
constexpr unsigned kLongestLook = 10;
// The longest wait for the answer of a launcher.
constexpr auto kLongestStacksAnswer = 60s;

// The values of the command's options.
struct StacksTexts {
  std::string pid, threads;
  bool json = false, crashed = false;
};

// Returns the process or thread id that the option `flag` has as its value.
int process_id(const char* flag, const std::string& text) {
  return static_cast<int>(whole_number(flag, text, 1, std::numeric_limits<pid_t>::max()));
}

std::string json_of(const std::vector<ThreadStack>& stacks, const std::string& problem) {
  nlohmann::ordered_json json;
  json["threads"] = nlohmann::ordered_json::array();
  for (const ThreadStack& stack : stacks) {
    json["threads"].push_back(
        {{"thread", stack.thread}, {"name", stack.name}, {"frames", stack.frames}});
  }
  if (!problem.empty()) json["problem"] = problem;
  return json_text(json) + "\n";
}

std::string text_of(const std::vector<ThreadStack>& stacks, const std::string& problem) {
  std::string text;
  for (const ThreadStack& stack : stacks) {
    text += fmt::format("thread {} ({}):\n{}", stack.thread, stack.name,
                        launcher::frames_text(stack.frames, "    "));
  }
  if (!problem.empty()) text += problem + "\n";
  return text;
}

// Closes this process's end of the pipe at its standard input. The closed pipe tells the launcher
// that the threads run again.
void close_input() {
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(nothing, STDIN_FILENO);
  close(nothing);
}

// Prints the stacks of the process of --pid, and returns the exit code of the command.
int stacks_of_process(const StacksTexts& texts) {
  StackQuestion question;
  question.pid = process_id("--pid", texts.pid);
  question.crashed = texts.crashed;
  for (const std::string& thread : items_of(texts.threads)) {
    question.threads.push_back(process_id("--threads", thread));
  }
  alarm(kLongestLook);
  try {
    auto stacks = read_stacks(question, close_input);
    std::string problem;
    if (!question.crashed && runs_python(question.pid)) {
      alarm(kLongestLook);
      problem = add_python_frames(question.pid, stacks);
    }
    fmt::print("{}", texts.json ? json_of(stacks, problem) : text_of(stacks, problem));
    return 0;
  } catch (const Error& error) {
    if (!texts.json) throw;
    const nlohmann::json problem = {{"problem", error.what()}};
    fmt::print("{}\n", json_text(problem));
    return kExitEnvironment;
  }
}

}  // namespace

int stacks_command(const Arguments& arguments) {
  CLI::App app(
      "Prints the call stack of every thread of a running job's ranks; prints equal stacks only "
      "once. JOB is optional if only one job runs. Needs no root rights, and stops the ranks for "
      "some milliseconds. Shows the functions of Python if py-spy is installed (pip install "
      "py-spy).",
      "paceline stacks");
  StacksTexts texts;
  OptionTable table(app, /*has_variables=*/false);
  table.word("JOB", kJobHelp);
  table.value("--pid", "PID", "Print the stacks of this process instead", text_target(texts.pid));
  table.value("--threads", "LIST", "With --pid: print only these threads, such as 711,713",
              text_target(texts.threads));
  table.flag("--crashed", "With --pid: leave out the frames of a signal handler",
             bool_target(texts.crashed));
  table.flag("--json", "With --pid: print one JSON object", bool_target(texts.json));
  app.footer(
      "\nExamples:\n  paceline stacks\n  paceline stacks 1f0c93aa\n  paceline stacks --pid 711");
  const auto words = table.read_line(arguments, 1);
  if (!words) return 0;
  if (!texts.pid.empty()) {
    if (!words->empty()) throw UsageError("give either JOB or --pid");
    return stacks_of_process(texts);
  }
  const Job found = find_job(*words);
  if (found.agents.empty()) throw UsageError(no_ranks_here(found));
  for (const JobEntry& agent : found.agents) {
    if (found.agents.size() > 1) fmt::print("launcher {}:\n", agent.supervisor);
    fmt::print("{}",
               launcher::ask_job(agent.socket, "stacks", Deadline::after(kLongestStacksAnswer)));
  }
  return 0;
}

}  // namespace paceline::apps
