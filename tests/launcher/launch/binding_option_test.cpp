#include <gtest/gtest.h>

#include "apps/run/rank_options.h"

namespace paceline::apps {
namespace {

using launcher::BindTo;

TEST(BindingOption, every_value_is_read_and_written_the_same) {
  for (const char* text :
       {"core", "cache", "numa", "socket", "none", "map:0", "map:0-3;4-7", "map:0,2,8-9;1"}) {
    const auto binding = parse_binding(text);
    ASSERT_TRUE(binding.has_value()) << text;
    EXPECT_EQ(format_binding(*binding), text);
  }
  EXPECT_EQ(parse_binding("map:1;0")->map, (std::vector<std::vector<int>>{{1}, {0}}));
}

TEST(BindingOption, anything_else_is_refused) {
  for (const char* text : {"", "cores", "Core", "map", "map:", "map:0;", "map:;0", "map:0 ;1",
                           "map:a", "map:3-1", "l3"}) {
    EXPECT_FALSE(parse_binding(text).has_value()) << text;
  }
}

TEST(BindingOption, torchruns_words_mean_ours) {
  EXPECT_EQ(parse_numa_binding("node")->to, BindTo::kNuma);
  EXPECT_EQ(parse_numa_binding("socket")->to, BindTo::kPackage);
  EXPECT_EQ(parse_numa_binding("exclusive")->to, BindTo::kCore);
  EXPECT_EQ(parse_numa_binding("core-complex")->to, BindTo::kCache);
  EXPECT_FALSE(parse_numa_binding("core").has_value());
}

}  // namespace
}  // namespace paceline::apps
