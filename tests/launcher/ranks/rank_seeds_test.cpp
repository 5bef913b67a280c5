// Seeds without the command around them: which changes between two starts they allow, and what many
// starts leave behind.

#include "paceline/launcher/ranks/rank_seeds.h"

#include <csignal>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/output/rank_output.h"
#include "paceline/launcher/process/descendants.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/open_descriptors.h"
#include "tests/harness/says.h"
#include "tests/harness/wait_until.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::HasSubstr;

class RankSeedsTest : public testing::Test {
 protected:
  static constexpr auto kLimit = 20s;

  RankSeedsTest() {
    adopt_orphans();
    program_ = directory_.file("program");
    std::filesystem::copy_file(SEEDED_PROGRAM, program_);
    environment_ = inherited_environment();
    environment_["RANK"] = environment_["LOCAL_RANK"] = "0";
    environment_["WORLD_SIZE"] = "1";
    environment_["TORCHELASTIC_RESTART_COUNT"] = "0";
  }
  ~RankSeedsTest() override { end_all_descendants(Deadline::after(kLimit)); }

  // Starts the one rank and waits until it is in main(). Returns whether it was forked.
  bool start(RankSeeds& seeds) {
    Pipe out = make_output_pipe();
    const Fd nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
    const Fd secret(memfd_create("secret", MFD_CLOEXEC));
    environment_["PACELINE_SECRET_FD"] = std::to_string(secret.get());
    seeds.begin_generation();
    process_ = seeds.start(0, {.path = program_,
                               .command = {"program", "sleeps"},
                               .environment = environment_,
                               .cpus = {},
                               .numa_nodes = {},
                               .stdin_fd = nothing.get(),
                               .stdout_fd = out.write_end.get(),
                               .stderr_fd = STDERR_FILENO,
                               .inherited = {secret.get()}});
    out.write_end.reset();
    const Deadline deadline = Deadline::after(kLimit);
    line_.clear();
    while (!line_.ends_with('\n') && wait_ready(out.read_end.get(), POLLIN, deadline)) {
      char c = 0;
      if (read(out.read_end.get(), &c, 1) != 1) break;
      line_ += c;
    }
    return line_.find("loaded " + std::to_string(process_.pid) + " ") == std::string::npos;
  }

  bool wait_for_seed(RankSeeds& seeds) {
    return harness::wait_until([&] { return !seeds.pids().empty(); }, Deadline::after(kLimit));
  }

  // Ends the rank in the same way as the launcher.
  void end_rank(RankSeeds& seeds) {
    kill(-process_.pid, SIGKILL);
    waitpid(process_.pid, nullptr, 0);
    EXPECT_TRUE(end_all_descendants(Deadline::after(kLimit), seeds.pids()));
  }

  // Makes a start that leaves a seed, and ends the rank.
  void begin(RankSeeds& seeds) {
    EXPECT_FALSE(start(seeds)) << line_;
    ASSERT_TRUE(wait_for_seed(seeds));
    end_rank(seeds);
  }

  std::function<void(const std::string&)> hear() {
    return [this](const std::string& text) { said_ += text; };
  }

  const FreshDirectory directory_;
  std::string program_, line_, said_;
  Environment environment_;
  Process process_;
};

#ifndef __SANITIZE_THREAD__
TEST_F(RankSeedsTest, fifty_starts_from_seeds_leave_no_descriptor_and_no_process) {
  std::ptrdiff_t descriptors = 0;
  {
    RankSeeds seeds(program_, true, hear());
    begin(seeds);
    for (int i = 1; i <= 50; ++i) {
      environment_["TORCHELASTIC_RESTART_COUNT"] = std::to_string(i);
      ASSERT_TRUE(start(seeds)) << i << line_ << said_;
      ASSERT_THAT(line_, HasSubstr("generation " + std::to_string(i) + " "));
      ASSERT_TRUE(wait_for_seed(seeds));
      end_rank(seeds);
      if (i == 1) descriptors = num_descriptors();
    }
    EXPECT_EQ(num_descriptors(), descriptors);
    EXPECT_EQ(seeds.pids().size(), 1u);
  }
  std::string children;
  std::getline(std::ifstream("/proc/thread-self/children"), children);
  EXPECT_EQ(children, "");
  EXPECT_EQ(said_, "");
}

// OMP_NUM_THREADS, for example, is read while the library is loaded.
TEST_F(RankSeedsTest, a_changed_variable_that_libraries_may_have_read_means_an_execution) {
  RankSeeds seeds(program_, true, hear());
  begin(seeds);
  environment_["OMP_NUM_THREADS"] = "7";
  EXPECT_FALSE(start(seeds));
  EXPECT_THAT(said_, Says("agent.not_forked_new_environment", 0));
  end_rank(seeds);
}

TEST_F(RankSeedsTest, a_changed_program_is_executed) {
  RankSeeds seeds(program_, true, hear());
  begin(seeds);
  std::filesystem::remove(program_);
  std::filesystem::copy_file(SEEDED_PROGRAM, program_);
  EXPECT_FALSE(start(seeds));
  EXPECT_THAT(said_, Says("agent.not_forked_new_program", 0));
  ASSERT_TRUE(wait_for_seed(seeds));
  end_rank(seeds);
  EXPECT_TRUE(start(seeds)) << "the new one has a seed, too" << said_;
  end_rank(seeds);
}

// The program finds its library through a link. The library is a copy that belongs to the test.
class RankSeedsLibraryTest : public RankSeedsTest {
 protected:
  RankSeedsLibraryTest() {
    for (const char* release : {"old", "new"}) {
      std::filesystem::create_directory(directory_.file(release));
      std::filesystem::copy_file(LOAD_WITNESS, directory_.file(release) + "/" + kLibrary);
    }
    std::filesystem::create_directory_symlink("old", link_);
    environment_["LD_LIBRARY_PATH"] = link_;
  }

  void expect_an_execution_after(const std::function<void()>& change) {
    RankSeeds seeds(program_, true, hear());
    begin(seeds);
    change();
    EXPECT_FALSE(start(seeds));
    EXPECT_EQ(said_,
              "paceline: local rank 0 is started by executing the program, not from a seed: " +
                  library_ + " has changed since it was loaded\n");
    ASSERT_TRUE(wait_for_seed(seeds));
    end_rank(seeds);
    said_.clear();
    EXPECT_TRUE(start(seeds)) << "the new ones have a seed, too" << said_;
    end_rank(seeds);
  }

  const std::string kLibrary = std::filesystem::path(LOAD_WITNESS).filename();
  const std::string link_ = directory_.file("current"), library_ = link_ + "/" + kLibrary;
};

TEST_F(RankSeedsLibraryTest, a_library_that_is_replaced_means_an_execution) {
  expect_an_execution_after([&] {
    std::filesystem::rename(directory_.file("new/" + kLibrary), directory_.file("old/" + kLibrary));
  });
}

TEST_F(RankSeedsLibraryTest, a_library_that_is_written_to_means_an_execution) {
  expect_an_execution_after([&] {
    std::filesystem::last_write_time(library_, std::filesystem::last_write_time(library_) + 1s);
  });
}

TEST_F(RankSeedsLibraryTest, a_link_that_leads_to_another_release_means_an_execution) {
  expect_an_execution_after([&] {
    std::filesystem::create_directory_symlink("new", directory_.file("next"));
    std::filesystem::rename(directory_.file("next"), link_);
  });
}

TEST_F(RankSeedsTest, a_rank_that_dies_before_its_seed_is_ready_is_executed_again) {
  RankSeeds seeds(program_, true, hear());
  EXPECT_FALSE(start(seeds));
  kill(-process_.pid, SIGKILL);
  waitpid(process_.pid, nullptr, 0);
  EXPECT_TRUE(end_all_descendants(Deadline::after(kLimit)));  // the seed has ended as well
  EXPECT_FALSE(start(seeds));
  end_rank(seeds);
}
#endif

TEST(ChangesOfPlace, are_known_by_name) {
  const Environment before = {{"RANK", "0"}, {"OMP_NUM_THREADS", "2"}, {"PACELINE_ENCRYPT", "1"}};
  Environment after = {{"RANK", "1"}, {"OMP_NUM_THREADS", "2"}, {"MASTER_PORT", "5"}};
  const VariableChanges changes = {
      {"RANK", "1"}, {"MASTER_PORT", "5"}, {"PACELINE_ENCRYPT", std::nullopt}};
  EXPECT_EQ(changes_of_place(before, after), changes);
  after["OMP_NUM_THREADS"] = "3";
  EXPECT_EQ(changes_of_place(before, after), std::nullopt);
  after.erase("OMP_NUM_THREADS");
  EXPECT_EQ(changes_of_place(before, after), std::nullopt);
  EXPECT_EQ(changes_of_place(before, before), VariableChanges());
}

}  // namespace
}  // namespace paceline::launcher
