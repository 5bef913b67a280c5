// Lists of hosts as users write them, and words that are refused as hosts.

#include "paceline/launcher/hosts/host_list.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using harness::Says;

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

std::string refusal_of(const std::string& list) {
  return refusal([&] { parse_host_list(list, "--hosts"); });
}

TEST(HostListRefuses, what_is_not_a_host) {
  for (const std::string text : {"-oProxyCommand=touch x", "-v", "me@-v", "-l@a", "a;touch x",
                                 "$(touch x)", "a`id`", "a b", "a@b@c", "@a", "a@", "[a]", "[]"}) {
    EXPECT_THAT(refusal_of(text), Says("hosts.not_a_host", "--hosts", text));
  }
  for (const char* text : {"a,,b", "", "a,"})
    EXPECT_THAT(refusal_of(text), Says("hosts.not_a_host", "--hosts", "")) << text;
  for (const std::string& text : {std::string("a\nb"), std::string("h\xc3\xb6st")})
    EXPECT_THAT(refusal_of(text), Says("hosts.not_a_host", "--hosts", text));
  EXPECT_THAT(refusal_of(std::string(254, 'a')), Says("hosts.not_a_host", "--hosts"));
  for (const char* text : {"[fe80::1", "x[::1]", "\x1b[31m"})
    EXPECT_THAT(refusal_of(text), Says("hosts.not_in_brackets", "--hosts")) << text;
}

TEST(HostListRefuses, slots_that_are_no_number) {
  for (const char* slots : {"0", "-1", "", "x", "4097", "99999999999999999999", "1:2"})
    EXPECT_THAT(refusal_of(std::string("a:") + slots),
                Says("hosts.slots_refused", "--hosts", slots, 4096));
  EXPECT_THAT(refusal_of("fe80::1"), Says("hosts.slots_refused", "--hosts", ":1"));
}

TEST(HostListRefuses, a_host_that_is_listed_twice) {
  EXPECT_THAT(refusal_of("a:2,b:2,a:1"), Says("hosts.listed_twice", "--hosts", "a"));
  EXPECT_THAT(refusal_of("a,me@a"), Says("hosts.listed_twice", "--hosts", "me@a"));
}

TEST(HostList, names_file_and_line_of_what_is_wrong) {
  const auto message = [](const std::string& text) {
    return refusal([&] { parse_hostfile(text, "cluster.txt"); });
  };
  EXPECT_THAT(message("a slots=1\n\n-oProxyCommand=x slots=2\n"),
              Says("hosts.not_a_host", "cluster.txt, line 3", "-oProxyCommand=x"));
  EXPECT_THAT(message("a slots=0\n"), Says("hosts.slots_refused", "cluster.txt, line 1", 0));
  EXPECT_THAT(message("a slot=4\n"), Says("hosts.word_unknown", "cluster.txt, line 1", "slot=4"));
  EXPECT_THAT(message("a 4\n"), Says("hosts.word_unknown", "cluster.txt, line 1", 4));
  EXPECT_THAT(message("a slots=4 slots=4\n"),
              Says("setting.given_twice", "cluster.txt, line 1: slots"));
  EXPECT_THAT(message("a slots=4 max_slots=2\n"),
              Says("hosts.slots_above_most", "cluster.txt, line 1", 4, 2));
  EXPECT_THAT(message("a\nb\na\n"), Says("hosts.listed_twice", "cluster.txt, line 3", "a"));
  EXPECT_THAT(message("a;$(touch x)\n"),
              Says("hosts.not_a_host", "cluster.txt, line 1", "a;$(touch"));
  EXPECT_THAT(message("# nothing\n\n"), Says("hosts.none_listed", "cluster.txt"));
  EXPECT_THAT(message(std::string("a\0b\n", 4)),
              Says("hosts.not_a_host", "cluster.txt, line 1", "a\\x00b"));
  EXPECT_THAT(refusal([] { read_hostfile("/nowhere/hosts"); }),
              Says("hosts.file_not_opened", "/nowhere/hosts", "No such file"));
  EXPECT_THAT(refusal([] { read_hostfile("/tmp"); }), Says("hosts.file_not_opened", "/tmp"));
}

// For any text the result is an error, or hosts that are safe on a command line.
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
  EXPECT_GT(taken, 1000);  // random texts do contain valid hosts
}

}  // namespace
}  // namespace paceline::launcher
