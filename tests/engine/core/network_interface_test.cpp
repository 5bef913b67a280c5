#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/host.h"

namespace paceline {
namespace {

const std::vector<InterfaceAddress> kThere = {
    {"lo", "127.0.0.1", false, true},    {"docker0", "172.17.0.1", false, false},
    {"eth0", "10.0.0.7", false, false},  {"eth1", "192.168.1.7", false, false},
    {"ib0", "fd00::7", true, false},     {"lo", "::1", true, true},
    {"docker0", "fd17::1", true, false}, {"eth0", "2001:db8::7", true, false},
};

TEST(NetworkInterface, without_a_wish_it_is_the_first_that_other_hosts_reach) {
  EXPECT_EQ(choose_address("", kThere, false), "172.17.0.1");
  EXPECT_EQ(choose_address("", kThere, true), "fd17::1");
  EXPECT_EQ(choose_address("", {kThere[0]}, false), "127.0.0.1");
  EXPECT_EQ(choose_address("", {}, false), "127.0.0.1");
}

TEST(NetworkInterface, beginnings_of_names_count_in_the_order_of_the_list) {
  EXPECT_EQ(choose_address("eth", kThere, false), "10.0.0.7");
  EXPECT_EQ(choose_address("eth1,eth0", kThere, false), "192.168.1.7");
  EXPECT_EQ(choose_address("wlan,ib", kThere, false), "fd00::7");
  EXPECT_EQ(choose_address("lo", kThere, false), "127.0.0.1");
}

TEST(NetworkInterface, whole_names_and_names_to_leave_out) {
  EXPECT_EQ(choose_address("=eth1", kThere, false), "192.168.1.7");
  EXPECT_EQ(choose_address("^docker", kThere, false), "10.0.0.7");
  EXPECT_EQ(choose_address("^docker,eth", kThere, false), "fd00::7");
}

TEST(NetworkInterface, the_family_is_the_preferred_one_where_the_interface_has_it) {
  EXPECT_EQ(choose_address("=eth0", kThere, true), "2001:db8::7");
  EXPECT_EQ(choose_address("=eth1", kThere, true), "192.168.1.7");
}

TEST(NetworkInterface, a_wish_that_fits_nothing_names_what_there_is) {
  for (const char* wanted : {"wlan", "=eth", "^docker,eth,ib"}) {
    try {
      choose_address(wanted, kThere, false);
      FAIL() << wanted;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid);
      EXPECT_NE(std::string(error.what()).find("eth1 (192.168.1.7)"), std::string::npos)
          << error.what();
      EXPECT_NE(std::string(error.what()).find(wanted), std::string::npos) << error.what();
    }
  }
}

TEST(NetworkInterface, this_host_has_loopback) {
  const auto there = interface_addresses();
  EXPECT_TRUE(std::any_of(there.begin(), there.end(), [](const auto& one) {
    return one.is_loopback && one.address == "127.0.0.1";
  }));
}

}  // namespace
}  // namespace paceline
