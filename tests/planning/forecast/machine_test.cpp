#include "paceline/planning/forecast/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/option_text.h"

#include "tests/harness/says.h"

namespace paceline::planning {
namespace {

using harness::Says;

std::string refusal(const std::string& text) {
  try {
    parse_machine(text, {});
  } catch (const SettingError& error) {
    return error.what();
  }
  return "";
}

TEST(Machine, is_read_as_people_type_it) {
  const Machine machine = parse_machine(
      "hosts=64,ranks=8,link=100Gbit,latency=5us,cores=64,memory=512GB,mtbf=5000h,checkpoint=20s,"
      "restart=3min,interval=1h,stragglers=5%",
      {});
  EXPECT_EQ(machine.world_size(), 512);
  EXPECT_DOUBLE_EQ(machine.links.network.bytes_per_s, 12.5e9);
  EXPECT_DOUBLE_EQ(machine.links.network.latency_s, 5e-6);
  EXPECT_EQ(machine.cores_per_host, 64);
  EXPECT_DOUBLE_EQ(machine.memory_bytes, 512e9);
  EXPECT_DOUBLE_EQ(machine.mtbf_s, 5000 * 3600.0);
  EXPECT_EQ(machine.checkpoint_s, 20);
  EXPECT_EQ(machine.restart_s, 180);
  EXPECT_EQ(machine.interval_s, 3600);
  EXPECT_DOUBLE_EQ(machine.stragglers, 0.05);
  EXPECT_THAT(describe(machine), Says("machine.described", "64 hosts", "8 ranks", 100, 5, 64));
}

TEST(Machine, keeps_what_the_text_does_not_name) {
  Machine usual{.ranks_per_host = 4, .memory_bytes = 7};
  usual.links.reduce_bytes_per_s = 3;
  Machine expected = usual;
  expected.hosts = 2;
  EXPECT_EQ(parse_machine("hosts=2", usual), expected);
}

TEST(Machine, says_what_is_wrong) {
  EXPECT_THAT(refusal("ranks=8"), Says("cluster.without_hosts", "ranks=8"));
  EXPECT_THAT(refusal("hosts=0"), Says("setting.no_number", "hosts", 0, 1, 1000000));
  EXPECT_THAT(refusal("hosts=2,hosts=2"), Says("setting.given_twice", "hosts"));
  EXPECT_THAT(refusal("hosts=2,speed=3"), Says("machine.unknown_setting", "speed"));
  EXPECT_THAT(refusal("hosts=2,mtbf=5"), Says("setting.not_a_time", "mtbf", 5));
  EXPECT_THAT(refusal("hosts=2,memory=5"), Says("setting.not_a_size", "memory", 5));
  EXPECT_THAT(refusal("hosts=2,stragglers=5"), Says("setting.not_a_share", "stragglers", 5));
  EXPECT_THAT(refusal("hosts=1000,ranks=1001"), Says("cluster.too_large", 1000, 1001, 1000000));
}

}  // namespace
}  // namespace paceline::planning
