// Shell completion, asked of the shells themselves.

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launch/paceline_process.h"

namespace paceline::launch {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Outcome shell(const std::string& name, const std::string& script) {
  return PacelineProcess({"-c", script}, {}, name).wait();
}

// What bash offers for a command line whose last word is being typed.
std::vector<std::string> offered(const std::vector<std::string>& words) {
  std::string script = "eval \"$(" PACELINE_COMMAND " completion bash)\"; COMP_WORDS=(paceline";
  for (const std::string& word : words) script += " '" + word + "'";
  script += "); COMP_CWORD=" + std::to_string(words.size()) +
            "; compopt() { :; }; _paceline; printf '%s\\n' \"${COMPREPLY[@]}\"";
  const Outcome outcome = shell("/bin/bash", script);
  EXPECT_EQ(outcome.err, "");
  std::vector<std::string> lines;
  std::istringstream stream(outcome.out);
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

TEST(Completion, of_bash_knows_commands_and_their_options) {
  EXPECT_THAT(offered({"ru"}), ElementsAre("run"));
  EXPECT_THAT(offered({""}), Contains("doctor"));
  EXPECT_THAT(offered({""}), Not(Contains("remote-agent")));
  EXPECT_THAT(offered({"run", "--nproc"}), ElementsAre("--nproc-per-node"));
  EXPECT_THAT(offered({"run", "--log-dir", "x", "--all-"}), ElementsAre("--all-ranks"));
  EXPECT_THAT(offered({"submit", "s"}), ElementsAre("slurm"));
  EXPECT_THAT(offered({"submit", "slurm", "--part"}), ElementsAre("--partition"));
  EXPECT_THAT(offered({"completion", "f"}), ElementsAre("fish"));
  EXPECT_THAT(offered({"bench", "--"}), Not(Contains("--hosts")));
}

TEST(Completion, of_bash_leaves_the_programs_arguments_alone) {
  EXPECT_THAT(offered({"run", "./train", "--nproc"}), IsEmpty());
  EXPECT_THAT(offered({"run", "--all-ranks", "./train", "--nproc"}), IsEmpty());
  EXPECT_THAT(offered({"run", "--", "--nproc"}), IsEmpty());
}

TEST(Completion, of_bash_knows_the_values_of_options) {
  EXPECT_THAT(offered({"run", "--bind", ""}),
              ElementsAre("core", "cache", "numa", "socket", "none"));
  EXPECT_THAT(offered({"run", "--bind", "=", "nu"}), ElementsAre("numa"));
  EXPECT_THAT(offered({"run", "--bind", "="}), Contains("numa"));
  EXPECT_THAT(offered({"run", "--hang-action", "k"}), ElementsAre("kill"));
  EXPECT_THAT(offered({"run", "--fork-server", "o"}), ElementsAre("on", "off"));
  EXPECT_THAT(offered({"run", "--log-dir", "k"}), IsEmpty());
  EXPECT_THAT(offered({"run", "./train", "--bind", "nu"}), IsEmpty());
}

// What fish offers for a command line whose last word is being typed.
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
  if (std::system("command -v fish >/dev/null") != 0) GTEST_SKIP() << "fish is not installed";
  EXPECT_THAT(offered_by_fish("paceline run --nproc-per"), ElementsAre("--nproc-per-node"));
  EXPECT_THAT(offered_by_fish("paceline run --bind nu"), ElementsAre("numa"));
  EXPECT_THAT(offered_by_fish("paceline run --log-dir x --all-r"), ElementsAre("--all-ranks"));
  EXPECT_THAT(offered_by_fish("paceline run ./train --nproc-per"), IsEmpty());
  EXPECT_THAT(offered_by_fish("paceline run --all-ranks ./train --bi"), IsEmpty());
  EXPECT_THAT(offered_by_fish("paceline run -- --nproc-per"), IsEmpty());
  EXPECT_THAT(offered_by_fish("paceline submit kube"), ElementsAre("kubernetes"));
  EXPECT_THAT(offered_by_fish("paceline submit slurm --parti"), ElementsAre("--partition"));
}

TEST(Completion, scripts_are_accepted_by_their_shells) {
  for (const auto& [path, check] :
       std::map<std::string, std::string>{{"/bin/bash", "bash -n"},
                                          {"/usr/bin/zsh", "zsh -n"},
                                          {"/usr/bin/fish", "fish --no-execute"}}) {
    const std::string name = path.substr(path.rfind('/') + 1);
    const Outcome script = run_paceline({"completion", name});
    EXPECT_EQ(script.exit_code, 0) << script.err;
    EXPECT_THAT(script.out, HasSubstr("nproc-per-node"));
    if (std::system(("command -v " + name + " >/dev/null").c_str()) != 0) continue;
    const Outcome checked =
        shell("/bin/sh", PACELINE_COMMAND " completion " + name + " | " + check);
    EXPECT_EQ(checked.exit_code, 0) << name << ": " << checked.err;
  }
}

TEST(Completion, of_an_unknown_shell_is_refused) {
  const Outcome outcome = run_paceline({"completion", "csh"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("bash, zsh or fish"));
}

}  // namespace
}  // namespace paceline::launch
