// The fork server under `paceline run`, as programs, users and the machine see it.

#include "paceline/engine/rendezvous/fork_server.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/says.h"
#include "tests/harness/wait_until.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::HasSubstr;
using testing::Not;

using Arguments = std::vector<std::string>;

// The values in the line that say_who() of seeded_program.cpp prints.
struct Start {
  int generation = 0, pid = 0, loaded = 0, statics = 0, grown = 0, parent = 0;
};

std::vector<Start> starts_in(const std::string& text) {
  std::vector<Start> starts;
  const std::regex line(
      R"(generation (\d+) pid (\d+) loaded (\d+) statics (\d+) grown (\d) parent (\d+))");
  for (std::sregex_iterator i(text.begin(), text.end(), line), end; i != end; ++i) {
    const auto number = [&](int group) { return std::stoi((*i)[group]); };
    starts.push_back({number(1), number(2), number(3), number(4), number(5), number(6)});
  }
  return starts;
}

Outcome run(Arguments options, const Arguments& program,
            PacelineProcess::Variables variables = {}) {
  Arguments arguments = {"run", "--max-restarts", "10"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), program.begin(), program.end());
  return run_paceline(arguments, variables);
}

void expect_all_executed(const Outcome& outcome, std::size_t count) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto starts = starts_in(outcome.out);
  ASSERT_EQ(starts.size(), count) << outcome.out << outcome.err;
  for (const Start& start : starts) {
    EXPECT_EQ(start.loaded, start.pid);
    EXPECT_EQ(start.grown, 0);
  }
}

#ifdef __SANITIZE_THREAD__
// A fork would lose the thread of the sanitizer.
TEST(ForkServer, a_program_with_the_thread_sanitizer_is_executed_again) {
  expect_all_executed(run({}, {SEEDED_PROGRAM, "restarts", "2"}), 3);
}
#else

TEST(ForkServer, later_generations_are_forked_and_not_loaded_again) {
  const Outcome outcome = run({}, {SEEDED_PROGRAM, "restarts", "3"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto starts = starts_in(outcome.out);
  ASSERT_EQ(starts.size(), 4u) << outcome.out << outcome.err;
  for (const Start& start : starts) {
    EXPECT_EQ(start.loaded, starts[0].pid);
    EXPECT_EQ(start.statics, start.pid) << "the program's own objects are each process's own";
    EXPECT_EQ(start.grown, start.generation > 0);
    EXPECT_EQ(start.parent, starts[0].parent);
    EXPECT_EQ(start.pid == starts[0].pid, start.generation == 0);
  }
}

TEST(ForkServer, a_forked_rank_sees_what_an_executed_one_sees) {
  const auto described = [](const std::string& server) {
    const Outcome outcome =
        run({"--fork-server", server, "--role", "a b=c", "--rdzv-id", "same"},
            {SEEDED_PROGRAM, "describe", "", "a b"},
            {{"EMPTY", ""}, {"LINES", "1\n2"}, {"PACELINE_FLIGHT_DIR", "/tmp"}});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr(server == "on" ? "grown 1" : "generation 1"));
    // Leaves out numbers that differ at every start, and the test's own folders.
    std::string text = outcome.out.substr(outcome.out.find('\n', outcome.out.find("generation 1")));
    text = std::regex_replace(
        text, std::regex("(_PORT|_STORE|_FD|_SOCKET|_MEMORY_CHECKPOINT|TMPDIR)=.*"), "$1=");
    return std::regex_replace(text, std::regex("/dev/pts/[0-9]+"), "/dev/pts/N");
  };
  const std::string forked = described("on");
  EXPECT_EQ(forked, described("off"));
  EXPECT_THAT(forked, HasSubstr("TORCHELASTIC_RESTART_COUNT=1\n"));
  EXPECT_THAT(forked, HasSubstr("secret 1\n"));
  EXPECT_THAT(forked, HasSubstr("child -1, No child processes\n"));
  EXPECT_THAT(forked, HasSubstr("dies with its parent by 9"));
  EXPECT_THAT(forked, Not(HasSubstr(kForkServerVariable)));
}

// The pids of the job's seeds, which wait to become ranks.
std::vector<std::string> seeds_of(const Start& rank) {
  std::vector<std::string> pids;
  const std::string parent = fmt::format("\nPPid:\t{}\n", rank.parent);
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::stringstream status;
    status << std::ifstream(entry.path() / "status").rdbuf();
    const std::string text = status.str();
    if (text.starts_with("Name:\tpaceline-seed\n") && text.find(parent) != std::string::npos) {
      pids.push_back(entry.path().filename());
    }
  }
  return pids;
}

class SleepingJob {
 public:
  explicit SleepingJob(const std::string& program = SEEDED_PROGRAM,
                       const PacelineProcess::Variables& variables = {})
      : paceline_({"run", "--max-restarts", "10", "--nproc-per-node", "2", "--all-ranks", program,
                   "sleeps"},
                  variables) {
    std::string text;
    for (const char* prefix : {"[0] ", "[1] "}) text += paceline_.wait_for_lines(prefix, 1)[0];
    ranks_ = starts_in(text);
  }

  PacelineProcess& paceline() { return paceline_; }
  const std::vector<Start>& ranks() const { return ranks_; }
  // The pids of the seeds; every rank forks one before main().
  std::vector<std::string> seeds() const {
    std::vector<std::string> pids;
    EXPECT_TRUE(harness::wait_until([&] { return (pids = seeds_of(ranks_[0])).size() >= 2; },
                                    Deadline::after(PacelineProcess::kLimit)));
    return pids;
  }

 private:
  PacelineProcess paceline_;
  std::vector<Start> ranks_;
};

TEST(ForkServer, each_rank_has_a_seed_of_its_own_and_writes_where_it_should) {
  SleepingJob job;
  ASSERT_EQ(job.ranks().size(), 2u);
  kill(job.ranks()[1].pid, SIGKILL);
  for (const int rank : {0, 1}) {
    const auto lines = job.paceline().wait_for_lines(fmt::format("[{}] ", rank), 2);
    const auto again = starts_in(lines[1]);
    ASSERT_EQ(again.size(), 1u);
    EXPECT_EQ(again[0].generation, 1);
    EXPECT_EQ(again[0].loaded, job.ranks()[static_cast<std::size_t>(rank)].pid);
  }
}

TEST(ForkServer, nothing_is_left_of_it_when_the_job_ends_or_is_killed) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    SleepingJob job;
    ASSERT_EQ(job.ranks().size(), 2u);
    const auto pids = job.seeds();
    ASSERT_EQ(pids.size(), 2u);
    const auto seeds = open_pidfds(pids);
    kill(std::stoi(pids[0]), SIGSTOP);
    job.paceline().send(signal);
    EXPECT_TRUE(all_gone(seeds, 10s)) << "signal " << signal;
  }
}

TEST(ForkServer, a_killed_agent_leaves_no_seed) {
  SleepingJob job;
  ASSERT_EQ(job.ranks().size(), 2u);
  const auto pids = job.seeds();
  ASSERT_EQ(pids.size(), 2u);
  const auto seeds = open_pidfds(pids);
  kill(std::stoi(pids[1]), SIGSTOP);
  kill(job.ranks()[0].parent, SIGKILL);
  EXPECT_TRUE(all_gone(seeds, 10s));
  EXPECT_EQ(job.paceline().wait().exit_code, 128 + SIGKILL);
}

TEST(ForkServer, a_killed_and_a_stopped_seed_cost_an_execution) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    SleepingJob job;
    ASSERT_EQ(job.ranks().size(), 2u);
    const auto pids = job.seeds();
    ASSERT_EQ(pids.size(), 2u);
    const auto seeds = open_pidfds(pids);
    for (const auto& pid : pids) kill(std::stoi(pid), signal);
    kill(job.ranks()[1].pid, SIGKILL);
    const auto again = starts_in(job.paceline().wait_for_lines("[0] ", 2)[1]);
    ASSERT_EQ(again.size(), 1u);
    EXPECT_EQ(again[0].loaded, again[0].pid);
    EXPECT_TRUE(all_gone(seeds, 10s));
    job.paceline().send(SIGTERM);
    const Outcome outcome = job.paceline().wait();
    EXPECT_THAT(outcome.err, signal == SIGKILL ? Says("run.seed_ended") : Says("run.seed_silent"));
  }
}

// Replaces the file, as a new build does in the middle of a job.
void replace_file(const std::string& path) {
  std::filesystem::copy_file(path, path + ".new");
  std::filesystem::rename(path + ".new", path);
}

TEST(ForkServer, a_program_or_a_library_that_was_replaced_is_loaded_again_and_said) {
  for (const bool is_library : {false, true}) {
    const FreshDirectory directory;
    const std::string program = directory.file("program");
    const std::string library =
        directory.file(std::filesystem::path(LOAD_WITNESS).filename().string());
    std::filesystem::copy_file(SEEDED_PROGRAM, program);
    std::filesystem::copy_file(LOAD_WITNESS, library);
    SleepingJob job(program, {{"LD_LIBRARY_PATH", directory.path()}});
    ASSERT_EQ(job.ranks().size(), 2u);
    ASSERT_EQ(job.seeds().size(), 2u);
    replace_file(is_library ? library : program);
    kill(job.ranks()[0].pid, SIGKILL);
    for (const char* prefix : {"[0] ", "[1] "}) {
      const auto again = starts_in(job.paceline().wait_for_lines(prefix, 2)[1]);
      ASSERT_EQ(again.size(), 1u);
      EXPECT_EQ(again[0].loaded, again[0].pid);
    }
    job.paceline().send(SIGTERM);
    EXPECT_THAT(job.paceline().wait().err,
                is_library ? Says("run.library_changed", library) : Says("run.program_changed"));
  }
}
#endif

TEST(ForkServer, a_program_behind_a_shell_is_executed_again) {
  const std::string program = SEEDED_PROGRAM;
  expect_all_executed(run({}, {"sh", "-c", program + " restarts 2; exit $?"}), 3);
  expect_all_executed(run({}, {"sh", "-c", "exec " + program + " restarts 2"}), 3);
  expect_all_executed(run({}, {"env", "MORE=1", program, "restarts", "2"}), 3);
}

TEST(ForkServer, state_that_a_library_made_while_loading_is_not_shared) {
  for (const char* left : {"thread", "descriptor"}) {
    expect_all_executed(run({}, {SEEDED_PROGRAM, "restarts", "2"}, {{"WITNESS", left}}), 3);
  }
}

TEST(ForkServer, off_means_that_every_generation_is_executed) {
  expect_all_executed(run({"--fork-server", "off"}, {SEEDED_PROGRAM, "restarts", "2"}), 3);
  const Outcome refused = run({"--fork-server", "maybe"}, {"true"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, Says("cli.value_refused", "--fork-server", "maybe", "on or off"));
}

TEST(ForkServer, an_invitation_survives_its_text_and_nothing_else_is_one) {
  const ForkServerInvitation invitation{.socket = 7,
                                        .launcher = 12345,
                                        .device = 66306,
                                        .file = 18446744073709551615ULL,
                                        .num_descriptors = 5};
  EXPECT_EQ(parse_invitation(to_text(invitation).c_str()), invitation);
  for (const char* text : {"", "7", "7,1,2,3", "7,1,2,3,5x", "7,1,2,3,5,6", "on"}) {
    EXPECT_EQ(parse_invitation(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace paceline::launcher
