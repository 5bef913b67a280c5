#include <set>

#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/process/rank_resources.h"

namespace paceline::launcher {
namespace {

TEST(ReservedPort, can_be_listened_on_by_rank_0_while_it_is_reserved) {
  const ReservedPort reserved = reserve_port(0);
  EXPECT_EQ(local_port(listen_tcp({"127.0.0.1", reserved.port})), reserved.port);
  EXPECT_EQ(local_port(listen_tcp({"0.0.0.0", reserved.port})), reserved.port);
  EXPECT_EQ(local_port(listen_tcp({"::", reserved.port})), reserved.port);
}

TEST(ReservedPort, is_not_given_to_another_process_that_asks_for_a_free_one) {
  std::vector<ReservedPort> reserved;
  std::set<std::uint16_t> ports;
  for (int i = 0; i < 200; ++i) {
    reserved.push_back(reserve_port(0));
    ports.insert(reserved.back().port);
    ports.insert(local_port(listen_tcp({"127.0.0.1", 0})));
  }
  for (const ReservedPort& one : reserved) EXPECT_EQ(ports.count(one.port), 1U);
  std::set<std::uint16_t> distinct;
  for (const ReservedPort& one : reserved) distinct.insert(one.port);
  EXPECT_EQ(distinct.size(), reserved.size());
}

TEST(ReservedPort, in_use_is_an_error_with_its_number) {
  const Fd holder = listen_tcp({"127.0.0.1", 0});
  try {
    reserve_port(local_port(holder));
    FAIL() << "a taken port was reserved";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(local_port(holder))),
              std::string::npos);
  }
}

}  // namespace
}  // namespace paceline::launcher
