// An agent with its own ranks and consoles, without the command and the supervisor around it.

#include "paceline/launcher/job/agent.h"

#include <csignal>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using harness::Says;

class Agents : public testing::Test {
 protected:
  Agents() {
    adopt_orphans();
    plan_.options.run_id = "job";
    plan_.options.num_local_ranks = 2;
    plan_.options.fork_server = false;
    plan_.options.log_dir = directory_.file("logs");
    plan_.options.console.assign(2, {true, true});
    plan_.program_path = "/bin/sh";
    plan_.placement = plan_placement(discover_topology(),
                                     {.num_local_ranks = 2, .binding = {.to = BindTo::kNone}});
  }

  // Runs `script` as a job of two ranks; returns the exit code of the job.
  int run(const std::string& script) {
    plan_.options.command = {"sh", "-c", script};
    const Fd out = make_file("out"), err = make_file("err");
    EventLoop loop;
    Consoles consoles(loop, -1, out.get(), err.get());
    AgentChannel channel{std::move(control_.read_end), Fd(open("/dev/null", O_RDONLY | O_CLOEXEC))};
    return Agent(plan_, std::move(channel), loop, consoles).run();
  }
  void signal(int number) {
    const char byte = static_cast<char>(number);
    ASSERT_EQ(write(control_.write_end.get(), &byte, 1), 1);
  }
  Fd make_file(const std::string& name) const {
    return Fd(open(directory_.file(name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  }
  std::string text_of(const std::string& name) const {
    std::stringstream text;
    text << std::ifstream(directory_.file(name)).rdbuf();
    return text.str();
  }

  const FreshDirectory directory_;
  LaunchPlan plan_;
  Pipe control_ = make_pipe();
};

TEST_F(Agents, end_with_the_exit_code_of_the_first_rank_that_fails_and_report_it) {
  EXPECT_EQ(run("[ $RANK = 1 ] && exit 3; exec sleep 60"), 3);
  EXPECT_THAT(text_of("err"), Says("run.first_failure", 1, "exit code 3"));
}

TEST_F(Agents, start_another_generation_and_tell_the_ranks_what_is_left) {
  plan_.options.restarts.max_restarts = 1;
  EXPECT_EQ(run("[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 3; echo $TORCHELASTIC_MAX_RESTARTS"),
            0);
  EXPECT_EQ(text_of("out"), "1\n1\n");
  EXPECT_THAT(text_of("err"), Says("run.restarts", 1, 1, 1));
}

TEST_F(Agents, stop_their_ranks_for_a_signal_of_the_supervisor) {
  signal(SIGTERM);
  EXPECT_EQ(run("exec sleep 60"), 128 + SIGTERM);
  EXPECT_THAT(text_of("err"), Says("run.stopped", "SIGTERM"));
}

TEST_F(Agents, end_everything_once_the_supervisor_is_gone) {
  control_.write_end.reset();
  EXPECT_EQ(run("exec sleep 60"), 128 + SIGKILL);
}

}  // namespace
}  // namespace paceline::launcher
