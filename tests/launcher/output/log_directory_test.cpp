#include "paceline/launcher/output/log_directory.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness/fresh_directory.h"
#include "tests/harness/planted.h"
#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using harness::Says;

using namespace std::chrono_literals;

std::string content(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void write_line(const Fd& log, const std::string& line) {
  ASSERT_EQ(write(log.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
}

TEST(LogDirectory, a_new_job_starts_its_logs_again) {
  const FreshDirectory folder;
  folder.write("rank-000.log", "of an older job\n");
  LogDirectory logs(folder.path(), "a job");
  write_line(logs.open_log(0, 0), "first\n");
  EXPECT_EQ(content(logs.path_of(0)), "first\n");
  write_line(logs.open_log(0, 1), "second\n");
  EXPECT_EQ(content(logs.path_of(0)), "first\n=== paceline: generation 1 ===\nsecond\n");
}

TEST(LogDirectory, planted_links_and_fifos_lead_nowhere_and_hold_no_job_up) {
  harness::with_each_planted("rank-000.log", [](const std::string& folder) {
    LogDirectory logs(folder, "a job");
    EXPECT_FALSE(logs.open_log(0, 0));
    EXPECT_THAT(logs.problem(), Says("agent.log_not_made", folder + "/rank-000.log"));
    LogDirectory later(folder, "a job");
    EXPECT_FALSE(later.open_log(0, 1));  // a restarted rank continues its old log
    logs.remove_if_temporary();
  });
  harness::with_each_planted(kClaimFile, [](const std::string& folder) {
    try {
      LogDirectory logs(folder, "a job");
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), Says("agent.log_folder_unwritable", folder));
    }
  });
}

// Each node has its own launcher. The folder is on a disk that the nodes share.
TEST(LogDirectory, a_node_that_inherits_a_lost_nodes_rank_continues_its_log) {
  const FreshDirectory folder;
  LogDirectory of_the_lost(folder.path(), "a job"), of_the_survivor(folder.path(), "a job");
  const Fd lost = of_the_lost.open_log(0, 0);
  write_line(lost, "the cause\n");
  of_the_survivor.open_log(1, 0);
  write_line(of_the_survivor.open_log(0, 1), "going on\n");
  write_line(lost, "last words\n");  // the other node was cut off, it is not dead
  EXPECT_EQ(content(of_the_lost.path_of(0)),
            "the cause\n=== paceline: generation 1 ===\ngoing on\nlast words\n");
}

TEST(LogDirectory, a_job_that_is_queued_again_continues_its_logs) {
  const FreshDirectory folder;
  folder.write("rank-000.log", "before\n");
  setenv("SLURM_RESTART_COUNT", "2", 1);
  LogDirectory logs(folder.path(), "a job");
  write_line(logs.open_log(0, 0), "after\n");
  unsetenv("SLURM_RESTART_COUNT");
  EXPECT_EQ(content(logs.path_of(0)), "before\n=== paceline: requeue 2 ===\nafter\n");
}

TEST(LogDirectory, another_job_that_runs_at_the_same_time_gets_a_folder_of_its_own) {
  const FreshDirectory folder;
  const auto first = std::make_unique<LogDirectory>(folder.path(), "job \033[31mred");
  LogDirectory node(folder.path(), "job \033[31mred"), other(folder.path(), "job blue");
  EXPECT_EQ(node.notice(), "");
  EXPECT_EQ(node.path(), folder.path());
  EXPECT_TRUE(other.path().starts_with(folder.path() + "/paceline-")) << other.path();
  EXPECT_EQ(other.notice(), "the log folder " + folder.path() +
                                " is in use by another job (job \\x1b[31mred); logs and records "
                                "are in " +
                                other.path());
  write_line(other.open_log(0, 0), "blue\n");
  other.remove_if_temporary();  // keeps the folder: the user asked for one, if for another name
  EXPECT_EQ(content(other.path_of(0)), "blue\n");
}

TEST(LogDirectory, a_folder_is_free_again_when_its_job_has_ended) {
  const FreshDirectory folder;
  std::make_unique<LogDirectory>(folder.path(), "one").reset();
  EXPECT_EQ(LogDirectory(folder.path(), "two").notice(), "");
  EXPECT_EQ(LogDirectory(folder.path(), "three").path(), folder.path());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(LogDirectory, a_temporary_one_without_logs_is_removed) {
  const FreshDirectory base;
  setenv("TMPDIR", base.path().c_str(), 1);
  {
    const LogDirectory logs("", "one");
    EXPECT_TRUE(std::filesystem::is_directory(logs.path()));
  }
  EXPECT_TRUE(std::filesystem::is_empty(base.path()));
  unsetenv("TMPDIR");
}

TEST(LogDirectory, a_temporary_one_that_cannot_be_made_costs_the_logs_only) {
  setenv("TMPDIR", "/proc", 1);
  LogDirectory logs("", "a job");
  unsetenv("TMPDIR");
  EXPECT_THAT(logs.problem(), Says("agent.log_folder_not_made", "/proc"));
  EXPECT_FALSE(logs.open_log(0, 0));
}

// The folders that jobs have left in TMPDIR.
class OldLogFolders : public testing::Test {
 protected:
  static constexpr const char* kName = "paceline-20260102-030405-aB3xY9";

  // Leaves a folder with one file, both last changed this long ago. Returns its path.
  std::string leave(const std::string& name, const std::string& file, std::chrono::hours ago) {
    const std::filesystem::path folder = base_.file(name);
    std::filesystem::create_directory(folder);
    std::ofstream(folder / file) << "text";
    const auto then = std::filesystem::file_time_type::clock::now() - ago;
    std::filesystem::last_write_time(folder / file, then);
    std::filesystem::last_write_time(folder, then);
    return folder;
  }
  bool is_kept(const std::string& path) {
    remove_old_log_folders(base_.path());
    return std::filesystem::exists(path);
  }

  const FreshDirectory base_;
  const std::chrono::hours week_ = std::chrono::hours(7 * 24);
};

TEST_F(OldLogFolders, are_removed_after_a_week) {
  for (const char* file : {"rank-000.log", "rank-1234.flight", "rank-001-002.timeline",
                           "rank-000.steps", "rank-000.calls", ".paceline.lock"}) {
    EXPECT_FALSE(is_kept(leave(kName, file, week_ + 1h))) << file;
  }
  EXPECT_TRUE(is_kept(leave(kName, "rank-000.log", week_ - 1h)));
}

TEST(LogDirectory, those_of_the_same_second_are_in_their_order) {
  const FreshDirectory base;
  std::vector<std::string> newest_first;
  for (const char* end : {"bbbbbb", "aaaaaa", "dddddd", "cccccc"}) {
    const std::string path = base.file(std::string("paceline-20260102-030405-") + end);
    ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
    const long ns = 1000 - static_cast<long>(newest_first.size());
    const std::array<timespec, 2> times{timespec{1'700'000'000, ns}, timespec{1'700'000'000, ns}};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times.data(), 0), 0);
    newest_first.push_back(path);
  }
  EXPECT_EQ(kept_log_folders(base.path()), newest_first);
}

TEST_F(OldLogFolders, stay_with_whatever_else_lies_in_them) {
  for (const char* file : {"notes.txt", "rank-000.log.gz", "rank-x.log", "rank-.log", "rank-0"}) {
    const std::string folder = leave(kName, file, week_ * 2);
    EXPECT_TRUE(is_kept(folder)) << file;
    std::filesystem::remove_all(folder);
  }
  const std::string fresh = leave(kName, "rank-000.log", week_ * 2);
  leave(kName, "rank-001.log", 1h);
  EXPECT_TRUE(is_kept(fresh));
}

TEST_F(OldLogFolders, of_other_names_and_what_links_lead_to_are_left_alone) {
  for (const char* name : {"paceline", "paceline-1000", "paceline-20260102-030405-aB3xY",
                           "paceline-20260102-030405-aB3x.9", "paceline-2026010x-030405-aB3xY9",
                           "somebody-20260102-030405-aB3xY9"}) {
    EXPECT_TRUE(is_kept(leave(name, "rank-000.log", week_ * 2))) << name;
  }
  const std::string aim = leave("aim", "rank-000.log", week_ * 2);
  std::filesystem::create_directory_symlink(aim, base_.file(kName));
  EXPECT_TRUE(is_kept(aim + "/rank-000.log"));
  EXPECT_TRUE(std::filesystem::is_symlink(base_.file(kName)));
}

TEST_F(OldLogFolders, of_a_job_that_runs_are_kept_however_silent_it_is) {
  const std::string folder = leave(kName, ".paceline.lock", week_ * 2);
  auto claim = claim_folder(folder, "it runs");
  const auto then = std::filesystem::file_time_type::clock::now() - week_ * 2;
  std::filesystem::last_write_time(folder + "/.paceline.lock", then);
  EXPECT_TRUE(is_kept(folder));
  claim.lock.reset();
  EXPECT_FALSE(is_kept(folder));
}

}  // namespace
}  // namespace paceline::launcher
