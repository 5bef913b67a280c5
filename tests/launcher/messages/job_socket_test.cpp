#include "paceline/launcher/messages/job_socket.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "paceline/launcher/process/event_loop.h"

#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::AllOf;
using testing::HasSubstr;

TEST(JobSocket, that_cannot_be_made_is_reported) {
  EventLoop loop;
  rlimit usual{};
  getrlimit(RLIMIT_NOFILE, &usual);
  rlimit none = usual;
  none.rlim_cur = 0;
  setrlimit(RLIMIT_NOFILE, &none);
  std::string said;
  const JobSocket socket(loop, 1, 1, {}, [&](const std::string& line) { said += line; });
  setrlimit(RLIMIT_NOFILE, &usual);
  EXPECT_EQ(socket.name(), "");
  EXPECT_THAT(said, AllOf(Says("agent.no_socket"), HasSubstr("Too many open files")));
}

}  // namespace
}  // namespace paceline::launcher
