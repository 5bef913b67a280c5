#include "paceline/checkpoint/run_mark.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "tests/checkpoint/test_directory.h"

namespace paceline {
namespace {

using testing::TestDirectory;

TEST(RunMark, is_read_as_it_was_written_and_replaced) {
  TestDirectory folder;
  EXPECT_FALSE(read_run_mark(folder.path()));
  for (const RunMark& mark : {RunMark{"0123abcd", "job 7"}, RunMark{"ffff", std::nullopt},
                              RunMark{"ffff", ""}, RunMark{"", "\"\n\\"}}) {
    write_run_mark(folder.path(), mark);
    EXPECT_EQ(read_run_mark(folder.path()), mark);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(RunMark, what_a_dead_writer_left_does_not_disturb) {
  TestDirectory folder;
  std::ofstream(folder / ".run.tmp") << "{\"run";
  EXPECT_FALSE(read_run_mark(folder.path()));
  write_run_mark(folder.path(), {"a", "b"});
  EXPECT_EQ(read_run_mark(folder.path()), (RunMark{"a", "b"}));
}

TEST(RunMark, one_that_makes_no_sense_counts_as_none) {
  for (const char* text :
       {"", "{}", "[]", "{\"run\":1}", "{\"run\":\"a\",\"job\":3}", "{\"run\""}) {
    TestDirectory folder;
    std::ofstream(folder / ".run") << text;
    EXPECT_FALSE(read_run_mark(folder.path())) << text;
  }
  TestDirectory folder;
  std::filesystem::create_symlink("/etc/hostname", folder / ".run");
  EXPECT_FALSE(read_run_mark(folder.path()));
}

TEST(RunMark, that_cannot_be_written_is_an_error) {
  EXPECT_THROW(write_run_mark("/proc/nowhere", {"a", "b"}), Error);
}

}  // namespace
}  // namespace paceline
