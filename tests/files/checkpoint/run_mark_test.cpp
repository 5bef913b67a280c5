#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "paceline/files/checkpoint/checkpoint_directory.h"

#include "tests/files/checkpoint/test_directory.h"

namespace paceline {
namespace {

using testing::TestDirectory;

TEST(RunMark, is_read_as_it_was_written_and_replaced) {
  TestDirectory folder, workspace;
  EXPECT_FALSE(read_run_mark(folder.path()));
  for (const RunMark& mark :
       {RunMark{"0123abcd", "job 7", 18446744073709551615U}, RunMark{"ffff", std::nullopt, 0},
        RunMark{"ffff", "", {}}, RunMark{"", "\"\n\\", {}}}) {
    write_run_mark(folder.path(), workspace.path(), mark);
    EXPECT_EQ(read_run_mark(folder.path()), mark);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_TRUE(std::filesystem::is_empty(workspace.path()));
}

TEST(RunMark, one_that_makes_no_sense_counts_as_none) {
  for (const char* text : {"", "{}", "[]", "{\"run\":1}", "{\"run\":\"a\",\"job\":3}",
                           "{\"run\":\"a\",\"seed\":\"3\"}", "{\"run\""}) {
    TestDirectory folder;
    std::ofstream(folder / ".run") << text;
    EXPECT_FALSE(read_run_mark(folder.path())) << text;
  }
  TestDirectory folder;
  std::filesystem::create_symlink("/etc/hostname", folder / ".run");
  EXPECT_FALSE(read_run_mark(folder.path()));
}

TEST(RunMark, that_cannot_be_written_is_an_error_and_leaves_the_one_before) {
  TestDirectory folder, workspace;
  EXPECT_THROW(write_run_mark(folder.path(), "/proc/nowhere", {"a", "b", {}}), Error);
  EXPECT_FALSE(read_run_mark(folder.path()));
  EXPECT_THROW(write_run_mark("/proc/nowhere", workspace.path(), {"a", "b", {}}), Error);
  EXPECT_TRUE(std::filesystem::is_empty(workspace.path()));
}

}  // namespace
}  // namespace paceline
