#include "paceline/engine/collectives/group/agreed_stop.h"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/harness/fresh_directory.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/shared_counter.h"
#include "tests/harness/wait_until.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using harness::run_process_ranks;

constexpr int kManySteps = 2'000'000;

// Runs steps until the ranks are asked to stop; returns "step reason".
std::string run_steps(ProcessGroup& group, AgreedStop& stop, int limit = kManySteps,
                      const std::function<void(int)>& each = {}) {
  for (int step = 1; step <= limit; ++step) {
    if (each) each(step);
    if (stop.requested(group)) return std::to_string(step) + " " + stop.reason();
  }
  return "never";
}

void expect_all_alike(const std::vector<harness::ProcessResult>& results,
                      const std::string& reason) {
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.report;
    EXPECT_EQ(result.report, results[0].report);
    EXPECT_THAT(result.report, testing::HasSubstr(reason));
  }
}

TEST(AgreedStop, a_signal_to_one_rank_stops_all_after_the_same_step) {
  std::mt19937 random(harness::random_seed());
  for (const int world_size : {1, 2, 3, 4}) {
    for (const int signal : {SIGUSR1, SIGTERM}) {
      harness::SharedCounter under_way;
      const auto results = run_process_ranks(
          world_size,
          [&](ProcessGroup& group) {
            AgreedStop stop;
            return run_steps(group, stop, kManySteps, [&](int step) {
              if (step == 10) under_way.add();
            });
          },
          {},
          [&](const std::vector<pid_t>& pids) {
            under_way.wait_for(static_cast<std::uint32_t>(world_size), Deadline::after(30s));
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
            kill(pids[random() % pids.size()], signal);
          });
      expect_all_alike(results, signal == SIGUSR1 ? " SIGUSR1" : " SIGTERM");
    }
  }
}

TEST(AgreedStop, signals_that_come_at_different_steps_and_again_stop_all_after_the_first) {
  const auto results = run_process_ranks(3, [](ProcessGroup& group) {
    AgreedStop stop;
    return run_steps(group, stop, 50, [&](int step) {
      if (step == 7 + group.rank()) raise(SIGTERM);
      if (step == 7) raise(SIGTERM);
    });
  });
  expect_all_alike(results, "7 SIGTERM");
}

TEST(AgreedStop, a_file_stops_all_and_is_gone_afterwards) {
  const FreshDirectory directory;
  const std::string path = directory.write("stop", "");
  const auto results = run_process_ranks(2, [&](ProcessGroup& group) {
    AgreedStop stop(path);
    return run_steps(group, stop, 3);
  });
  expect_all_alike(results, "1 the file " + path);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(AgreedStop, a_file_that_appears_later_is_seen) {
  const FreshDirectory directory;
  harness::SharedCounter under_way;
  const auto results = run_process_ranks(
      2,
      [&](ProcessGroup& group) {
        AgreedStop stop(directory.file("stop"));
        return run_steps(group, stop, kManySteps, [&](int step) {
          if (step == 10) under_way.add();
        });
      },
      {},
      [&](const std::vector<pid_t>&) {
        under_way.wait_for(2, Deadline::after(30s));
        directory.write("stop", "");
      });
  expect_all_alike(results, " the file ");
}

TEST(AgreedStop, nothing_stops_without_a_request) {
  const FreshDirectory directory;
  expect_all_alike(run_process_ranks(2,
                                     [&](ProcessGroup& group) {
                                       AgreedStop stop(directory.file("stop"));
                                       return run_steps(group, stop, 500);
                                     }),
                   "never");
}

TEST(AgreedStop, a_second_stop_sees_only_its_own_signals_and_handlers_are_restored) {
  const auto results = run_process_ranks(1, [](ProcessGroup& group) {
    {
      AgreedStop stop;
      raise(SIGUSR1);
      EXPECT_TRUE(stop.requested(group));
      EXPECT_TRUE(stop.requested(group));
    }
    struct sigaction action {};
    sigaction(SIGUSR1, nullptr, &action);
    EXPECT_EQ(action.sa_handler, SIG_DFL);
    AgreedStop again;
    EXPECT_FALSE(again.requested(group));
    return std::string();
  });
  EXPECT_EQ(results[0].exit_code, 0) << results[0].report;
}

// Waits until the process has taken the signal. If two equal signals were pending, one would be
// lost.
void wait_until_taken(pid_t pid, int signal) {
  const auto is_taken = [&] {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    std::string word;
    while (status >> word && word != "ShdPnd:") {
    }
    std::uint64_t waiting = 0;
    status >> std::hex >> waiting;
    return !status || (waiting >> (signal - 1) & 1) == 0;
  };
  ASSERT_TRUE(harness::wait_until(is_taken, Deadline::after(30s), 1ms));
}

// A pseudo-terminal for one rank.
class Terminal {
 public:
  Terminal() : master_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_EQ(::grantpt(master_.get()), 0);
    EXPECT_EQ(::unlockpt(master_.get()), 0);
  }
  // Called by the rank: makes it the foreground process of this terminal.
  void take() const {
    EXPECT_NE(::setsid(), -1);
    EXPECT_NE(::open(::ptsname(master_.get()), O_RDWR), -1);
  }
  void press_ctrl_c(pid_t pid) const {
    EXPECT_EQ(::write(master_.get(), "\x03", 1), 1);
    // Reads the terminal's echo of ^C.
    for (char echo = 0; echo != 'C';) ASSERT_EQ(::read(master_.get(), &echo, 1), 1);
    wait_until_taken(pid, SIGINT);
  }

 private:
  Fd master_;
};

void send(pid_t pid, int signal) {
  ::kill(pid, signal);
  wait_until_taken(pid, signal);
}

// Interrupts a rank during its only step.
harness::ProcessResult interrupt(const std::function<void(const Terminal&, pid_t)>& press) {
  const Terminal terminal;
  harness::SharedCounter under_way, released;
  return run_process_ranks(
      1,
      [&](ProcessGroup& group) {
        terminal.take();
        AgreedStop stop;
        under_way.add();
        released.wait_for(1, Deadline::after(30s));
        return run_steps(group, stop, 1);
      },
      {},
      [&](const std::vector<pid_t>& pids) {
        under_way.wait_for(1, Deadline::after(30s));
        press(terminal, pids[0]);
        released.add();
      })[0];
}

TEST(AgreedStop, ctrl_c_stops_after_the_step_and_the_second_one_at_once) {
  const auto once =
      interrupt([](const Terminal& terminal, pid_t pid) { terminal.press_ctrl_c(pid); });
  EXPECT_EQ(once.report, "1 SIGINT");
  const auto twice = interrupt([](const Terminal& terminal, pid_t pid) {
    for (int i = 0; i < 2; ++i) terminal.press_ctrl_c(pid);
  });
  EXPECT_EQ(twice.signal, SIGINT);
  const auto sent_once = interrupt([](const Terminal&, pid_t pid) { send(pid, SIGINT); });
  EXPECT_EQ(sent_once.report, "1 SIGINT");
  const auto sent_twice = interrupt([](const Terminal&, pid_t pid) {
    for (int i = 0; i < 2; ++i) send(pid, SIGINT);
  });
  EXPECT_EQ(sent_twice.signal, SIGINT);
}

TEST(AgreedStop, ctrl_c_that_a_launcher_passes_on_as_well_is_one) {
  const auto result = interrupt([](const Terminal& terminal, pid_t pid) {
    terminal.press_ctrl_c(pid);
    send(pid, SIGINT);
  });
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.report, "1 SIGINT");
}

TEST(AgreedStop, an_ignored_sigint_stays_ignored) {
  const auto results = run_process_ranks(1, [](ProcessGroup& group) {
    ::signal(SIGINT, SIG_IGN);
    AgreedStop stop;
    for (int i = 0; i < 2; ++i) raise(SIGINT);
    return run_steps(group, stop, 1);
  });
  EXPECT_EQ(results[0].report, "never");
}

TEST(AgreedStop, two_at_once_are_an_error) {
  const AgreedStop stop;
  EXPECT_THROW(AgreedStop(), Error);
}

TEST(AgreedStop, a_signal_that_cannot_be_caught_is_an_error) {
  try {
    AgreedStop("", {SIGUSR2, SIGKILL});
    FAIL() << "SIGKILL was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalid);
  }
  struct sigaction action {};
  sigaction(SIGUSR2, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

TEST(AgreedStop, the_death_of_a_rank_is_an_error_as_in_every_collective) {
  const auto results = run_process_ranks(2, [](ProcessGroup& group) {
    AgreedStop stop;
    if (group.rank() == 1) _exit(9);
    return run_steps(group, stop);
  });
  EXPECT_TRUE(results[0].threw);
  EXPECT_EQ(results[0].code, ErrorCode::kPeerLost);
}

}  // namespace
}  // namespace paceline
