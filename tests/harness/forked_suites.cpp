// The main function of test programs that take long to start. With a filter of several patterns
// ("A.*:B.*"), the program runs each pattern in a forked process of its own, one after another: the
// suites pay for one start, but do not see each other's threads, memory and global state.

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

std::vector<std::string> patterns_of(const std::string& filter) {
  std::vector<std::string> patterns;
  for (std::size_t begin = 0; begin < filter.size();) {
    const std::size_t end = std::min(filter.find(':', begin), filter.size());
    patterns.push_back(filter.substr(begin, end - begin));
    begin = end + 1;
  }
  return patterns;
}

// Returns whether all tests of the pattern have passed.
bool passes(const std::string& pattern) {
  std::fflush(nullptr);  // the child would print the buffered text again
  const pid_t child = fork();
  if (child < 0) {
    std::perror("fork");
    return false;
  }
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a killed test leaves no suite behind
    GTEST_FLAG_SET(filter, pattern);
    std::exit(RUN_ALL_TESTS());
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFSIGNALED(status)) std::printf("%s: signal %d\n", pattern.c_str(), WTERMSIG(status));
  return status == 0;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string filter = GTEST_FLAG_GET(filter);
  const std::vector<std::string> patterns = patterns_of(filter);
  const bool lists = GTEST_FLAG_GET(list_tests);
  if (patterns.size() < 2 || lists || filter.find('-') != std::string::npos) return RUN_ALL_TESTS();
  std::string failed;
  for (const std::string& pattern : patterns) {
    if (!passes(pattern)) failed += " " + pattern;
  }
  if (failed.empty()) return 0;
  std::printf("failed:%s\n", failed.c_str());
  return 1;
}
