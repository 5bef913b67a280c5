#include <gtest/gtest.h>

#include "paceline/launcher/hosts/hosts_agent.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

const HostRetrySchedule::Moment kStart{1h};

TEST(HostRetrySchedule, tries_come_ever_later_and_have_an_end) {
  HostRetrySchedule host(8);
  HostRetrySchedule::Moment now = kStart;
  for (const auto pause : {1s, 2s, 4s, 8s, 16s, 32s, 60s, 60s}) {
    ASSERT_TRUE(host.plan(now));
    ASSERT_EQ(*host.next() - now, pause);
    EXPECT_FALSE(host.due(now));
    now = *host.next();
    EXPECT_TRUE(host.due(now));
    host.begin();
    EXPECT_FALSE(host.next());
  }
  EXPECT_FALSE(host.plan(now));
  EXPECT_FALSE(host.next());
}

TEST(HostRetrySchedule, a_host_that_is_lost_again_and_again_uses_up_its_tries) {
  HostRetrySchedule host(2);
  EXPECT_TRUE(host.plan(kStart));
  host.back(kStart + 1s);
  EXPECT_TRUE(host.plan(kStart + 5min));
  EXPECT_EQ(*host.next(), kStart + 5min + 2s);
  host.back(kStart + 6min);
  EXPECT_FALSE(host.plan(kStart + 7min));
}

TEST(HostRetrySchedule, a_host_that_was_back_for_long_gets_all_its_tries_again) {
  HostRetrySchedule host(1);
  EXPECT_TRUE(host.plan(kStart));
  host.back(kStart);
  EXPECT_TRUE(host.plan(kStart + 10min));
  EXPECT_EQ(*host.next(), kStart + 10min + 1s);
}

TEST(HostRetrySchedule, none_means_none) {
  HostRetrySchedule never(0), given_up(5);
  EXPECT_FALSE(never.plan(kStart));
  given_up.give_up();
  EXPECT_FALSE(given_up.plan(kStart));
}

}  // namespace
}  // namespace paceline::launcher
