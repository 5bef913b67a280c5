// Shell completion, tested in real shells.

#include <cstdlib>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"
#include "tests/launcher/launch/terminal_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Outcome shell(const std::string& name, const std::string& script) {
  return PacelineProcess({"-c", script}, {}, name).wait();
}

bool is_installed(const std::string& shell) {
  return std::system(("command -v " + shell + " >/dev/null").c_str()) == 0;
}

// The words of a line as bash splits it: runs of ":" and "=" are words of their own.
std::vector<std::string> split_by_bash(const std::string& line) {
  std::vector<std::string> words(1);
  bool is_break = false;
  for (const char c : line) {
    const bool breaks = c == ':' || c == '=';
    if (c == ' ' || (breaks != is_break && !words.back().empty())) words.emplace_back();
    if (c != ' ') words.back() += c;
    is_break = breaks;
  }
  return words;
}

// Bash's suggestions for a command line whose last word is being typed.
std::vector<std::string> offered(const std::string& line) {
  const std::vector<std::string> words = split_by_bash(line);
  std::string script = "paceline() { " PACELINE_COMMAND " \"$@\"; }; eval \"$(" PACELINE_COMMAND
                       " completion bash)\"; COMP_LINE='" +
                       line + "'; COMP_WORDS=(";
  for (const std::string& word : words) script += " '" + word + "'";
  script += "); COMP_CWORD=" + std::to_string(words.size() - 1) +
            "; compopt() { :; }; _paceline; printf '%s\\n' \"${COMPREPLY[@]}\"";
  const Outcome outcome = shell("/bin/bash", script);
  EXPECT_EQ(outcome.err, "");
  std::vector<std::string> lines;
  std::istringstream stream(outcome.out);
  for (std::string one; std::getline(stream, one);) {
    if (!one.empty()) lines.push_back(one);
  }
  return lines;
}

TEST(Completion, of_bash_knows_commands_and_their_options) {
  EXPECT_THAT(offered("paceline ru"), ElementsAre("run"));
  EXPECT_THAT(offered("paceline "), Contains("doctor"));
  EXPECT_THAT(offered("paceline "), Not(Contains("remote-agent")));
  EXPECT_THAT(offered("paceline run --nproc"), ElementsAre("--nproc-per-node"));
  EXPECT_THAT(offered("paceline run --log-dir x --all-"), ElementsAre("--all-ranks"));
  EXPECT_THAT(offered("paceline submit s"), ElementsAre("slurm"));
  EXPECT_THAT(offered("paceline submit slurm --part"), ElementsAre("--partition"));
  EXPECT_THAT(offered("paceline completion f"), ElementsAre("fish"));
  EXPECT_THAT(offered("paceline bench --"), Not(Contains("--hosts")));
}

TEST(Completion, of_bash_leaves_the_programs_arguments_alone) {
  EXPECT_THAT(offered("paceline run ./train --nproc"), IsEmpty());
  EXPECT_THAT(offered("paceline run --all-ranks ./train --nproc"), IsEmpty());
  EXPECT_THAT(offered("paceline run -- --nproc"), IsEmpty());
}

TEST(Completion, of_bash_continues_behind_values_with_colons) {
  for (const char* options :
       {"--hosts a:4,b:4", "--nnodes 1:2", "--rdzv-endpoint h:29400", "--tee 0:3",
        "--rdzv-endpoint=h:29400", "--nproc_per_node 2", "--tee=0:3 --bind=core --nnodes 1:2"}) {
    const std::string line = std::string("paceline run ") + options;
    EXPECT_THAT(offered(line + " --max-re"), ElementsAre("--max-restarts")) << options;
    EXPECT_THAT(offered(line + " ./train:x --max-re"), IsEmpty()) << options;
  }
  EXPECT_THAT(offered("paceline run --backend cpu:gl"), ElementsAre("gloo"));
  EXPECT_THAT(offered("paceline run --backend=cpu:"), Contains("gloo"));
}

// Bash itself splits the line into words, and completes it on a terminal.
TEST(Completion, of_bash_completes_at_a_terminal) {
  TerminalProcess bash({"/bin/bash", "--norc", "--noprofile", "-i"}, {24, 200},
                       {{"TERM", "dumb"}, {"PS1", "here> "}, {"INPUTRC", "/dev/null"}});
  bash.wait_for("here> ");
  bash.type("source <(" PACELINE_COMMAND " completion bash)\n");
  bash.wait_for("here> ");
  for (const auto& [typed, completed] : std::map<std::string, std::string>{
           {"paceline run --hosts a:4,b:4 --max-re\t", "--max-restarts "},
           {"paceline run --rdzv-endpoint=h:29400 --max-re\t", "--max-restarts "},
           {"paceline run --bind=nu\t", "--bind=numa "},
           {"paceline run --backend cpu:gl\t", "cpu:gloo "}}) {
    bash.type(typed);
    bash.wait_for(completed);
    bash.type("\x15\n");  // clears the line
    bash.wait_for("here> ");
  }
  bash.type("exit\n");
  EXPECT_EQ(bash.wait(), 0);
}

TEST(Completion, of_bash_knows_the_jobs_that_run) {
  PacelineProcess job({"run", "--rdzv-id", "complete me-7", "sh", "-c", "echo ready; sleep 60"});
  job.wait_for_lines("ready", 1);
  for (const char* command : {"stop", "top", "logs", "stacks", "logs --lines 3", "top --json"}) {
    EXPECT_THAT(offered(std::string("paceline ") + command + " compl"),
                ElementsAre("complete\\ me-7"))
        << command;
  }
  EXPECT_THAT(offered("paceline logs --lines compl"), IsEmpty());
  EXPECT_THAT(offered("paceline stop x compl"), IsEmpty());
  EXPECT_THAT(offered("paceline stop x --time"), ElementsAre("--timeout"));
  EXPECT_EQ(run_paceline({"stop", "complete me-7"}).exit_code, 0);
  job.wait();
}

TEST(Completion, of_bash_knows_the_values_of_options) {
  EXPECT_THAT(offered("paceline run --bind "),
              ElementsAre("core", "cache", "numa", "socket", "none"));
  EXPECT_THAT(offered("paceline run --bind=nu"), ElementsAre("numa"));
  EXPECT_THAT(offered("paceline run --bind="), Contains("numa"));
  EXPECT_THAT(offered("paceline run --hang-action k"), ElementsAre("kill"));
  EXPECT_THAT(offered("paceline run --fork-server o"), ElementsAre("on", "off"));
  EXPECT_THAT(offered("paceline run --log-dir k"), IsEmpty());
  EXPECT_THAT(offered("paceline run ./train --bind nu"), IsEmpty());
}

// Fish's suggestions for a command line whose last word is being typed.
std::vector<std::string> offered_by_fish(const std::string& line) {
  const Outcome outcome =
      shell("/usr/bin/fish",
            "cd /; " PACELINE_COMMAND " completion fish | source; complete -C '" + line + "'");
  std::vector<std::string> words;
  std::istringstream stream(outcome.out);
  for (std::string word; std::getline(stream, word);) {
    words.push_back(word.substr(0, word.find('\t')));
  }
  return words;
}

TEST(Completion, of_fish_knows_values_and_leaves_the_programs_arguments_alone) {
  if (!is_installed("fish")) GTEST_SKIP() << "fish is not installed";
  EXPECT_THAT(offered_by_fish("paceline run --nproc-per"), ElementsAre("--nproc-per-node"));
  EXPECT_THAT(offered_by_fish("paceline run --bind nu"), ElementsAre("numa"));
  EXPECT_THAT(offered_by_fish("paceline run --log-dir x --all-r"), ElementsAre("--all-ranks"));
  EXPECT_THAT(offered_by_fish("paceline run ./train --nproc-per"), IsEmpty());
  EXPECT_THAT(offered_by_fish("paceline run --all-ranks ./train --bi"), IsEmpty());
  EXPECT_THAT(offered_by_fish("paceline run -- --nproc-per"), IsEmpty());
  EXPECT_THAT(offered_by_fish("paceline submit kube"), ElementsAre("kubernetes"));
  EXPECT_THAT(offered_by_fish("paceline submit slurm --parti"), ElementsAre("--partition"));
}

class CompletionScript : public testing::TestWithParam<std::string> {};

TEST_P(CompletionScript, is_accepted_by_its_shell) {
  const std::string& name = GetParam();
  const Outcome script = run_paceline({"completion", name});
  EXPECT_EQ(script.exit_code, 0) << script.err;
  EXPECT_THAT(script.out, HasSubstr("nproc-per-node"));
  if (!is_installed(name)) GTEST_SKIP() << name << " is not installed";
  const std::string check = name == "fish" ? " --no-execute" : " -n";
  const Outcome checked =
      shell("/bin/sh", PACELINE_COMMAND " completion " + name + " | " + name + check);
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
}

INSTANTIATE_TEST_SUITE_P(Of, CompletionScript, testing::Values("bash", "zsh", "fish"),
                         [](const auto& info) { return info.param; });

TEST(Completion, of_an_unknown_shell_is_refused) {
  const Outcome outcome = run_paceline({"completion", "csh"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, Says("completion.unknown_shell"));
}

}  // namespace
}  // namespace paceline::launcher
