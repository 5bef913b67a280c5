#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/option_text.h"

#include "apps/bench/forecast.h"
#include "tests/harness/says.h"

namespace paceline::bench {
namespace {

using harness::Says;

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
  EXPECT_THAT(refusal(""), Says("cluster.unknown_setting", ""));
  EXPECT_THAT(refusal("hosts"), Says("setting.no_number", "hosts", "", 1, 4096));
  EXPECT_THAT(refusal("hosts=0"), Says("setting.no_number", "hosts", 0));
  EXPECT_THAT(refusal("hosts=-1"), Says("setting.no_number", "hosts", -1));
  EXPECT_THAT(refusal("hosts=2x"), Says("setting.no_number", "hosts", "2x"));
  EXPECT_THAT(refusal("hosts=99999999999999999999"), Says("setting.no_number"));
  EXPECT_THAT(refusal("hosts=2,"), Says("cluster.unknown_setting", ""));
  EXPECT_THAT(refusal("hosts=2,hosts=2"), Says("setting.given_twice", "hosts"));
  EXPECT_THAT(refusal("nodes=2"), Says("cluster.unknown_setting", "nodes"));
  for (const char* link : {"25", "Gbit", "-1Gbit", "0Gbit", "nanGbit", "infGbit", "1GB", "1 Gbit"})
    EXPECT_THAT(refusal(std::string("link=").append(link)),
                Says("setting.not_a_rate", "link", link));
  EXPECT_THAT(refusal("latency=20"), Says("setting.not_a_time", "latency", 20));
  EXPECT_THAT(refusal("link=25Gbit"), Says("cluster.without_hosts", "link=25Gbit"));
  EXPECT_EQ(refusal("hosts=512,ranks=8"), "");
  EXPECT_THAT(refusal("hosts=513,ranks=8"), Says("cluster.too_large", 513, 8, 4096));
}

}  // namespace
}  // namespace paceline::bench
