#include <gtest/gtest.h>

#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/topology.h"

namespace paceline {
namespace {

TEST(CpuList, is_written_as_the_kernel_does) {
  EXPECT_EQ(format_cpu_list({}), "");
  EXPECT_EQ(format_cpu_list({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
}

TEST(CpuList, is_read_in_any_order_and_each_cpu_once) {
  EXPECT_EQ(parse_cpu_list("8,0-3,2"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("65535"), (std::vector<int>{65535}));
}

TEST(CpuList, refuses_everything_else) {
  for (const char* text : {"", ",", "1,", "1-", "-1", "3-1", "a", "1 ", "0x1", "65536", "1--2",
                           "99999999999999999999"}) {
    EXPECT_FALSE(parse_cpu_list(text).has_value()) << text;
  }
}

TEST(BindToCpus, leaves_this_thread_the_processors_that_were_named) {
  const std::vector<int> before = allowed_cpus();
  ASSERT_FALSE(before.empty());
  ASSERT_TRUE(bind_to_cpus({before.back()}));
  EXPECT_EQ(allowed_cpus(), std::vector<int>{before.back()});
  ASSERT_TRUE(bind_to_cpus(before));
  EXPECT_EQ(allowed_cpus(), before);
}

// 1,023 is the largest number in a cpu_set_t.
TEST(BindToCpus, takes_large_numbers) {
  const std::vector<int> before = allowed_cpus();
  ASSERT_TRUE(bind_to_cpus({before.front(), 1024, 8191})) << "the kernel ignores what it lacks";
  EXPECT_EQ(allowed_cpus().front(), before.front());
  if (before.back() < 1024) {
    EXPECT_FALSE(bind_to_cpus({1024})) << "not 0 in its place";
  }
}

}  // namespace
}  // namespace paceline
