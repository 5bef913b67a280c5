#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/option_text.h"

#include "apps/bench/forecast.h"

namespace paceline::bench {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_cluster(text);
  } catch (const SettingError& error) {
    return error.what();
  }
  return "";
}

TEST(Cluster, is_read_as_people_type_it) {
  const Cluster cluster = parse_cluster("hosts=64,ranks=8,link=25Gbit,latency=20us");
  EXPECT_EQ(cluster.hosts, 64);
  EXPECT_EQ(cluster.ranks, 8);
  EXPECT_EQ(cluster.world_size(), 512);
  EXPECT_DOUBLE_EQ(*cluster.link_bytes_per_s, 25e9 / 8);
  EXPECT_DOUBLE_EQ(*cluster.latency_s, 20e-6);
  EXPECT_DOUBLE_EQ(*parse_cluster("hosts=2,link=1.5Mbit").link_bytes_per_s, 1.5e6 / 8);
  EXPECT_DOUBLE_EQ(*parse_cluster("hosts=2,latency=2ms").latency_s, 2e-3);
  EXPECT_EQ(parse_cluster("hosts=4"), (Cluster{.hosts = 4, .ranks = 1}));
}

TEST(Cluster, only_changes_what_it_names) {
  CostModel known;
  known.network = {.latency_s = 1, .message_s = 2, .bytes_per_s = 3};
  const CostModel costs = parse_cluster("hosts=2,link=8Gbit").costs(known);
  EXPECT_DOUBLE_EQ(costs.network.bytes_per_s, 1e9);
  EXPECT_DOUBLE_EQ(costs.network.latency_s, 1);
  EXPECT_DOUBLE_EQ(costs.network.message_s, 2);
  EXPECT_EQ(parse_cluster("hosts=2").costs(known), known);
}

TEST(Cluster, says_what_is_wrong) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal(""), HasSubstr("hosts=64,ranks=8,link=25Gbit"));
  EXPECT_THAT(refusal("hosts"), HasSubstr("hosts=: not a whole number from 1 to 4096"));
  EXPECT_THAT(refusal("hosts=0"), HasSubstr("hosts=0: not a whole number"));
  EXPECT_THAT(refusal("hosts=-1"), HasSubstr("hosts=-1"));
  EXPECT_THAT(refusal("hosts=2x"), HasSubstr("hosts=2x"));
  EXPECT_THAT(refusal("hosts=99999999999999999999"), HasSubstr("whole number"));
  EXPECT_THAT(refusal("hosts=2,"), HasSubstr("'' is not one of"));
  EXPECT_THAT(refusal("hosts=2,hosts=2"), HasSubstr("hosts is given twice"));
  EXPECT_THAT(refusal("nodes=2"), HasSubstr("'nodes' is not one of hosts=, ranks=, link="));
  for (const char* link : {"25", "Gbit", "-1Gbit", "0Gbit", "nanGbit", "infGbit", "1GB", "1 Gbit"})
    EXPECT_THAT(refusal(std::string("link=").append(link)), HasSubstr("not a rate such as 25Gbit"))
        << link;
  EXPECT_THAT(refusal("latency=20"), HasSubstr("not a time such as 20us"));
  EXPECT_THAT(refusal("link=25Gbit"), HasSubstr("how many hosts?"));
  EXPECT_EQ(refusal("hosts=512,ranks=8"), "");
  EXPECT_THAT(refusal("hosts=513,ranks=8"), HasSubstr("513 hosts x 8 ranks are more than 4096"));
}

}  // namespace
}  // namespace paceline::bench
