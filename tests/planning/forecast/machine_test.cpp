#include "paceline/planning/forecast/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/option_text.h"

namespace paceline::planning {
namespace {

using testing::HasSubstr;

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
  EXPECT_EQ(machine.cores_a_host, 64);
  EXPECT_DOUBLE_EQ(machine.memory_bytes, 512e9);
  EXPECT_DOUBLE_EQ(machine.mtbf_s, 5000 * 3600.0);
  EXPECT_EQ(machine.checkpoint_s, 20);
  EXPECT_EQ(machine.restart_s, 180);
  EXPECT_EQ(machine.interval_s, 3600);
  EXPECT_DOUBLE_EQ(machine.stragglers, 0.05);
  EXPECT_THAT(describe(machine), HasSubstr("64 hosts x 8 ranks, 100 Gbit/s, 5 µs, 64 cores"));
}

TEST(Machine, keeps_what_the_text_does_not_name) {
  Machine usual{.ranks_a_host = 4, .memory_bytes = 7};
  usual.links.reduce_bytes_per_s = 3;
  Machine expected = usual;
  expected.hosts = 2;
  EXPECT_EQ(parse_machine("hosts=2", usual), expected);
}

TEST(Machine, says_what_is_wrong) {
  EXPECT_THAT(refusal("ranks=8"), HasSubstr("how many hosts?"));
  EXPECT_THAT(refusal("hosts=0"), HasSubstr("hosts=0: not a whole number from 1 to 1000000"));
  EXPECT_THAT(refusal("hosts=2,hosts=2"), HasSubstr("hosts is given twice"));
  EXPECT_THAT(refusal("hosts=2,speed=3"), HasSubstr("'speed' is not one of hosts=, ranks="));
  EXPECT_THAT(refusal("hosts=2,mtbf=5"), HasSubstr("not a time such as 20us"));
  EXPECT_THAT(refusal("hosts=2,memory=5"), HasSubstr("not a size such as 512GB"));
  EXPECT_THAT(refusal("hosts=2,stragglers=5"), HasSubstr("not a share such as 5%"));
  EXPECT_THAT(refusal("hosts=1000,ranks=1001"), HasSubstr("more than 1000000 ranks"));
}

}  // namespace
}  // namespace paceline::planning
