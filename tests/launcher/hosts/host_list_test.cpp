// Hosts as users write them, and what is not a host.

#include "paceline/launcher/hosts/host_list.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/random_seed.h"

namespace paceline::launcher {
namespace {

using testing::HasSubstr;

std::string refusal(const std::function<void()>& parse) {
  try {
    parse();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalid) << error.what();
    return error.what();
  }
  return "";
}

TEST(HostList, takes_names_slots_users_and_ipv6) {
  EXPECT_EQ(parse_host_list("a:4,b,me@c-1.example.org:2", "--hosts"),
            (std::vector<Host>{{"a", 4}, {"b", 0}, {"me@c-1.example.org", 2}}));
  EXPECT_EQ(parse_host_list("[fe80::1%eth0]:4,me@[::1],10.0.0.1:3", "--hosts"),
            (std::vector<Host>{{"fe80::1%eth0", 4}, {"me@::1", 0}, {"10.0.0.1", 3}}));
  EXPECT_EQ((Host{"me@c", 1}.address()), "c");
}

TEST(HostList, takes_the_hostfiles_of_open_mpi_deepspeed_and_mpich) {
  const char* text =
      "# the cluster\n"
      "worker-0 slots=4\n"
      "\n"
      "worker-1  slots=2 max_slots=8   # a small one\r\n"
      "\tworker-2 max-slots=4 slots=4\n"
      "worker-3:5\n"
      "worker-4";
  EXPECT_EQ(
      parse_hostfile(text, "hosts"),
      (std::vector<Host>{
          {"worker-0", 4}, {"worker-1", 2}, {"worker-2", 4}, {"worker-3", 5}, {"worker-4", 0}}));
}

struct Wrong {
  std::string text, message;
};

class HostListRefuses : public testing::TestWithParam<Wrong> {};

TEST_P(HostListRefuses, and_says_why) {
  const auto& [text, message] = GetParam();
  EXPECT_THAT(refusal([&] { parse_host_list(text, "--hosts"); }), HasSubstr(message)) << text;
}

INSTANTIATE_TEST_SUITE_P(
    Lists, HostListRefuses,
    testing::Values(Wrong{"-oProxyCommand=touch x",
                          "--hosts: '-oProxyCommand=touch x' is not a host"},
                    Wrong{"-v", "is not a host"}, Wrong{"me@-v", "is not a host"},
                    Wrong{"-l@a", "is not a host"}, Wrong{"a;touch x", "is not a host"},
                    Wrong{"$(touch x)", "is not a host"}, Wrong{"a`id`", "is not a host"},
                    Wrong{"a b", "is not a host"}, Wrong{"a,,b", "'' is not a host"},
                    Wrong{"", "'' is not a host"}, Wrong{"a,", "'' is not a host"},
                    Wrong{"a\nb", "is not a host"}, Wrong{"a@b@c", "is not a host"},
                    Wrong{"@a", "is not a host"}, Wrong{"a@", "is not a host"},
                    Wrong{"h\xc3\xb6st", "is not a host"}, Wrong{"\x1b[31m", "IPv6"},
                    Wrong{"a:0", "slots '0' is not a whole number from 1 to"},
                    Wrong{"a:-1", "slots '-1'"}, Wrong{"a:", "slots ''"}, Wrong{"a:x", "slots 'x'"},
                    Wrong{"a:4097", "slots '4097'"}, Wrong{"a:99999999999999999999", "slots '9"},
                    Wrong{"a:1:2", "slots '1:2'"}, Wrong{"fe80::1", "slots"},
                    Wrong{"[fe80::1", "IPv6 address in brackets"}, Wrong{"x[::1]", "IPv6"},
                    Wrong{"[a]", "is not a host"}, Wrong{"[]", "is not a host"},
                    Wrong{"a:2,b:2,a:1", "host 'a' is listed twice"},
                    Wrong{"a,me@a", "host 'me@a' is listed twice"},
                    Wrong{std::string(254, 'a'), "is not a host"}));

TEST(HostList, names_file_and_line_of_what_is_wrong) {
  const auto message = [](const std::string& text) {
    return refusal([&] { parse_hostfile(text, "cluster.txt"); });
  };
  EXPECT_THAT(message("a slots=1\n\n-oProxyCommand=x slots=2\n"),
              HasSubstr("cluster.txt, line 3: "));
  EXPECT_THAT(message("a slots=0\n"), HasSubstr("cluster.txt, line 1: slots '0'"));
  EXPECT_THAT(message("a slot=4\n"), HasSubstr("'slot=4' is neither slots=N nor max_slots=N"));
  EXPECT_THAT(message("a 4\n"), HasSubstr("'4' is neither"));
  EXPECT_THAT(message("a slots=4 slots=4\n"), HasSubstr("slots is given twice"));
  EXPECT_THAT(message("a slots=4 max_slots=2\n"), HasSubstr("slots=4 is above max_slots=2"));
  EXPECT_THAT(message("a\nb\na\n"), HasSubstr("cluster.txt, line 3: host 'a' is listed twice"));
  EXPECT_THAT(message("a;$(touch x)\n"), HasSubstr("line 1: 'a;$(touch' is not a host"));
  EXPECT_THAT(message("# nothing\n\n"), HasSubstr("cluster.txt: it lists no host"));
  EXPECT_THAT(message(std::string("a\0b\n", 4)), HasSubstr("'a\\x00b' is not a host"));
  EXPECT_THAT(refusal([] { read_hostfile("/nowhere/hosts"); }),
              HasSubstr("--hostfile /nowhere/hosts: No such file"));
  EXPECT_THAT(refusal([] { read_hostfile("/tmp"); }), HasSubstr("--hostfile /tmp: "));
}

// Whatever comes: hosts that are safe on a command line, or an error.
TEST(HostList, never_lets_anything_but_a_name_through) {
  std::mt19937 random(harness::random_seed());
  const std::string alphabet = "ab1.-_@:[]%,=# \t\n;$()`'\"\\\x01\x7f\xff/slotsmax_";
  int taken = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::string text(random() % 24, ' ');
    for (char& c : text) c = alphabet[random() % alphabet.size()];
    std::vector<Host> hosts;
    try {
      hosts = round % 2 == 0 ? parse_host_list(text, "x") : parse_hostfile(text, "x");
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kInvalid);
      continue;
    }
    for (const Host& host : hosts) {
      ++taken;
      ASSERT_FALSE(host.name.empty());
      ASSERT_NE(host.name[0], '-') << text;
      ASSERT_NE(host.address()[0], '-') << text;
      ASSERT_EQ(host.name.find_first_of(" \t\n;$()`'\"\\/=#,[]\x01\x7f\xff"), std::string::npos)
          << text;
      ASSERT_GE(host.slots, 0);
      ASSERT_LE(host.slots, kMaxSlots);
    }
  }
  EXPECT_GT(taken, 1000);  // the alphabet does make hosts
}

}  // namespace
}  // namespace paceline::launcher
