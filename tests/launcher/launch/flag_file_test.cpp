// Options from a file: the format, what overrides it, and what is refused.

#include "apps/cli/flag_file.h"

#include <filesystem>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "apps/cli/option_value.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using apps::parse_flag_file;
using harness::Says;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(FlagFile, holds_options_of_commands) {
  const auto entries = parse_flag_file(
      "# every day\n\n[run]\n  nproc_per_node = 4 # cores\nlog-dir=\"a \\\"b\\\" # c\"\n"
      "rdzv-id = 'x\\y'\nall-ranks = true\r\nshutdown-timeout = 2.5\n[submit]\nnnodes = 2\n",
      "x");
  ASSERT_EQ(entries.size(), 6U);
  EXPECT_EQ(entries[0], (apps::FlagFileEntry{"run", "nproc-per-node", "4", false, 4}));
  EXPECT_EQ(entries[1].value, "a \"b\" # c");
  EXPECT_EQ(entries[2].value, "x\\y");
  EXPECT_EQ(entries[3], (apps::FlagFileEntry{"run", "all-ranks", "true", true, 7}));
  EXPECT_EQ(entries[4].value, "2.5");
  EXPECT_EQ(entries[5].command, "submit");
}

TEST(FlagFile, names_the_line_of_what_is_wrong) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      parse_flag_file(text, "p.toml");
    } catch (const apps::UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message("nnodes = 2\n"), Says("flag_file.no_command", "p.toml", 1));
  EXPECT_THAT(message("[run]\nnnodes\n"), Says("flag_file.no_value", "p.toml", 2, "nnodes"));
  EXPECT_THAT(message("[run]\nlog-dir = logs\n"), Says("flag_file.bare_word", "p.toml", 2, "logs"));
  EXPECT_THAT(message("[run]\nlog-dir = \"logs\n"),
              Says("flag_file.not_closed", "p.toml", 2, "\""));
  EXPECT_THAT(message("[run]\nlog-dir = \"a\" b\n"),
              Says("flag_file.unexpected", "p.toml", 2, "b"));
  EXPECT_THAT(message("[run]\nlog-dir = \"a\\n\"\n"), Says("flag_file.bad_escape", "p.toml", 2));
  EXPECT_THAT(message("[run]\nlog-dir = \"\"\n"),
              Says("flag_file.value_empty", "p.toml", 2, "log-dir"));
  EXPECT_THAT(message("[run]\nnnodes =\n"), Says("flag_file.bare_word", "p.toml", 2, ""));
  EXPECT_THAT(message("[run\n"), Says("flag_file.no_section", "p.toml", 1, "[run"));
  EXPECT_THAT(message("[walk]\n"), Says("flag_file.unknown_section", "p.toml", 1, "walk"));
  EXPECT_THAT(message("[run]\n\x1b[2J = 1\n"), HasSubstr("\\x1b"));
}

TEST(FlagFile, takes_whatever_bytes_without_harm) {
  std::mt19937 random(harness::random_seed());
  const std::string alphabet = "[]run=\"'\\# \n\r\tab1-_.\x01\xff";
  for (int round = 0; round < 100'000; ++round) {
    std::string text = round % 2 == 0 ? "[run]\n" : "";
    for (auto left = random() % 30; left > 0; --left) text += alphabet[random() % alphabet.size()];
    try {
      for (const auto& entry : parse_flag_file(text, "x")) ASSERT_FALSE(entry.value.empty());
    } catch (const apps::UsageError&) {
    }
  }
}

class FlagFileOfRun : public testing::Test {
 protected:
  std::string config(const std::string& text) { return directory.write("my.toml", text); }
  Outcome run(const std::string& text, std::vector<std::string> options = {},
              PacelineProcess::Variables variables = {}) {
    std::vector<std::string> arguments = {"run", "--config", config(text)};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), {"sh", "-c", "echo $WORLD_SIZE"});
    return run_paceline(arguments, std::move(variables));
  }

  FreshDirectory directory;
};

TEST_F(FlagFileOfRun, counts_less_than_variables_and_the_command_line) {
  const std::string text = "[run]\nnproc-per-node = 3\n";
  EXPECT_EQ(run(text).out, "3\n");
  EXPECT_EQ(run(text, {}, {{"PET_NPROC_PER_NODE", "2"}}).out, "2\n");
  EXPECT_EQ(run(text, {"--nproc-per-node", "1"}, {{"PET_NPROC_PER_NODE", "2"}}).out, "1\n");
  EXPECT_EQ(run("[run]\nnproc-per-node = 2\nall-ranks = true\n").out.size(), 2 * 6U);
  EXPECT_EQ(run("[run]\nnproc-per-node = 2\nall-ranks = false\n").out, "2\n");
  EXPECT_EQ(run("[run]\nnproc-per-node = 2\nall-ranks = true\n", {"--all-ranks=false"}).out, "2\n");
  EXPECT_EQ(run("[submit]\nnnodes = 4\n").out, "1\n");
}

TEST_F(FlagFileOfRun, is_shown_as_the_source) {
  const Outcome outcome =
      run("[run]\n\nnproc-per-node = 3\nlog-dir = 'logs'\n", {"--print-config", "--log-dir", "x"});
  EXPECT_THAT(outcome.out,
              AllOf(testing::ContainsRegex("--nproc-per-node +3 +file .*my.toml, line 3"),
                    testing::ContainsRegex("--log-dir +x +flag --log-dir")));
}

TEST_F(FlagFileOfRun, is_found_in_the_working_directory) {
  directory.write("paceline.toml", "[run]\nnproc-per-node = 2\n");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  const Outcome outcome = run_paceline({"run", "sh", "-c", "echo $WORLD_SIZE"});
  std::filesystem::current_path(before);
  EXPECT_EQ(outcome.out, "2\n") << outcome.err;
}

// An options file that another user may have written.
class FlagFileOfAnother : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    path_ = directory_.write("paceline.toml", "[run]\nnproc-per-node = 3\n");
    if (GetParam() == std::string("written by all")) {
      ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
    } else if (chown(path_.c_str(), 65534, 65534) != 0) {
      GTEST_SKIP() << "giving a file away needs root";
    }
    before_ = std::filesystem::current_path();
    std::filesystem::current_path(directory_.path());
  }
  void TearDown() override {
    if (!before_.empty()) std::filesystem::current_path(before_);
  }

  FreshDirectory directory_;
  std::string path_;
  std::filesystem::path before_;
};

TEST_P(FlagFileOfAnother, is_said_and_not_read) {
  const Outcome outcome = run_paceline({"run", "sh", "-c", "echo $WORLD_SIZE"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "1\n");
  EXPECT_THAT(outcome.err, Says("flag_file.not_read", "paceline.toml"));
  EXPECT_THAT(run_paceline({"run", "--print-config", "true"}).out,
              testing::ContainsRegex("--config +none"));
  EXPECT_EQ(run_paceline({"run", "--help"}).err, "");
  const Outcome named = run_paceline({"run", "--config", path_, "true"});
  EXPECT_EQ(named.exit_code, 2);
  EXPECT_THAT(named.err, Says("flag_file.foreign", path_));
  const Outcome none = run_paceline({"run", "--config", "/dev/null", "true"});
  EXPECT_EQ(none.exit_code, 0) << none.err;
  EXPECT_THAT(none.err, Not(HasSubstr("paceline.toml")));  // other warnings may be printed
}

INSTANTIATE_TEST_SUITE_P(Files, FlagFileOfAnother, testing::Values("given away", "written by all"));

TEST_F(FlagFileOfRun, does_not_stand_before_the_help) {
  const Outcome outcome = run("[run]\nno-such-option = 1\n", {"--help"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("--nproc-per-node"));
}

TEST_F(FlagFileOfRun, may_begin_with_a_byte_order_mark) {
  EXPECT_EQ(run("\xef\xbb\xbf[run]\nnproc-per-node = 2\n").out, "2\n");
}

TEST_F(FlagFileOfRun, errors_name_the_line_and_what_was_meant) {
  const auto refused = [&](const std::string& text) {
    const Outcome outcome = run(text);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  };
  EXPECT_THAT(refused("[run]\nnproc-per-nod = 2\n"),
              Says("flag_file.unknown_option", "my.toml", 2, "nproc-per-nod", "nproc-per-node"));
  EXPECT_THAT(refused("[run]\nnproc-per-node = 0\n"),
              Says("cli.not_whole", "my.toml, line 2: nproc-per-node", 0));
  EXPECT_THAT(refused("[run]\nall-ranks = 'yes'\n"),
              Says("flag_file.flag_with_value", "my.toml", 2, "all-ranks"));
  EXPECT_THAT(refused("[run]\nnnodes = true\n"),
              Says("flag_file.value_is_flag", "my.toml", 2, "nnodes"));
  EXPECT_THAT(refused("[run]\nnnodes = 1\nnnodes = 1\n"),
              Says("flag_file.given_twice", "my.toml", 3, "nnodes"));
  EXPECT_THAT(refused("[run]\nconfig = 'x'\n"),
              Says("flag_file.command_line_only", "my.toml", 2, "config"));
  const Outcome missing = run_paceline({"run", "--config", "/nowhere/x.toml", "true"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("/nowhere/x.toml: No such file"));
}

TEST_F(FlagFileOfRun, is_not_believed_when_everybody_may_write_it) {
  const std::string path = config("[run]\nnproc-per-node = 3\n");
  chmod(path.c_str(), 0666);
  const Outcome outcome = run_paceline({"run", "--config", path, "true"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, Says("flag_file.foreign", path));
}

}  // namespace
}  // namespace paceline::launcher
