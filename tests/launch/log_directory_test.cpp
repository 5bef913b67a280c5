#include "paceline/launch/log_directory.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/harness/fresh_directory.h"

namespace paceline::launch {
namespace {

std::string content(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void write_line(const Fd& log, const std::string& line) {
  ASSERT_EQ(write(log.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
}

TEST(LogDirectory, a_new_job_begins_its_logs_anew) {
  const FreshDirectory folder;
  folder.write("rank-000.log", "of an older job\n");
  LogDirectory logs(folder.path());
  write_line(logs.open_log(0, 0), "first\n");
  EXPECT_EQ(content(logs.path_of(0)), "first\n");
  write_line(logs.open_log(0, 1), "second\n");
  EXPECT_EQ(content(logs.path_of(0)), "first\n=== paceline: generation 1 ===\nsecond\n");
}

// Each node has its own launcher, and the folder is on a disk that they share.
TEST(LogDirectory, a_node_that_inherits_a_lost_nodes_rank_goes_on_with_its_log) {
  const FreshDirectory folder;
  LogDirectory of_the_lost(folder.path()), of_the_survivor(folder.path());
  const Fd lost = of_the_lost.open_log(0, 0);
  write_line(lost, "the cause\n");
  of_the_survivor.open_log(1, 0);
  write_line(of_the_survivor.open_log(0, 1), "going on\n");
  write_line(lost, "last words\n");  // of a node that is cut off, not dead
  EXPECT_EQ(content(of_the_lost.path_of(0)),
            "the cause\n=== paceline: generation 1 ===\ngoing on\nlast words\n");
}

}  // namespace
}  // namespace paceline::launch
