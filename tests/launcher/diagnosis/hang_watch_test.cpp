#include "paceline/launcher/diagnosis/hang_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/harness/fresh_directory.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

TEST(HangWatch, without_records_there_is_no_hang) {
  const FreshDirectory directory;
  HangWatch watch(1s, directory.path(), {});
  const HangWatch::Ranks ranks = {{0, getpid()}, {1, getpid()}};
  const auto now = HangWatch::Clock::now();
  EXPECT_FALSE(watch.look(ranks, now));
  EXPECT_FALSE(watch.look(ranks, now + 1h));
  EXPECT_FALSE(watch.take_recovery());
}

}  // namespace
}  // namespace paceline::launcher
