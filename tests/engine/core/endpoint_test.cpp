// All forms in which users write a host or an address.

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <optional>

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/socket.h"

#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;

using namespace std::chrono_literals;

constexpr const char* kNobodys = "192.0.2.7";  // RFC 5737: no host has this address

struct Written {
  std::string text;
  std::string host;  // empty: the text is refused ...
  int port = 0;
  std::optional<harness::SaysMatcher> because;  // ... with this message
};

TEST(Endpoint, each_form_is_taken_or_refused_with_what_to_write) {
  const auto no_host = Says("usage.not_an_address", "--flag");
  const auto no_port = Says("endpoint.not_host_and_port", "--flag");
  const auto brackets = Says("usage.ipv6_without_brackets", "--flag");
  const auto everyones = Says("usage.any_address", "--flag");
  for (const Written& one :
       std::vector<Written>{{"head:29500", "head", 29500},
                            {"HEAD.Example.ORG:1", "HEAD.Example.ORG", 1},
                            {"head.example.org.:80", "head.example.org.", 80},
                            {"a-b_c:0", "a-b_c", 0},
                            {"head:65535", "head", 65535},
                            {"10.0.0.1:80", "10.0.0.1", 80},
                            {"127.1:80", "127.1", 80},
                            {"[::1]:80", "::1", 80},
                            {"[FE80::1%lo]:80", "FE80::1%lo", 80},
                            {"[::ffff:10.0.0.1]:80", "::ffff:10.0.0.1", 80},
                            {"", "", 0, no_port},
                            {"head", "", 0, no_port},
                            {"head:", "", 0, no_port},
                            {":80", "", 0, no_port},
                            {"head:65536", "", 0, no_port},
                            {"head:-1", "", 0, no_port},
                            {"head:80x", "", 0, no_port},
                            {"head: 80", "", 0, no_port},
                            {"head:80 ", "", 0, no_port},
                            {" head:80", "", 0, no_host},
                            {"head :80", "", 0, no_host},
                            {"he ad:80", "", 0, no_host},
                            {"head\n:80", "", 0, Says("usage.not_an_address", "--flag", "head\n")},
                            {"-head:80", "", 0, no_host},
                            {"user@head:80", "", 0, no_host},
                            {"http://head:80", "", 0, brackets},
                            {"[head]:80", "", 0, no_host},
                            {"[]:80", "", 0, no_host},
                            {"[::1:80", "", 0, brackets},
                            {"::1:80", "", 0, brackets},
                            {"fe80::1", "", 0, brackets},
                            {"[fe80::g]:80", "", 0, no_host},
                            {"[fe80::1%no-such-interface]:80", "", 0, no_host},
                            {"0.0.0.0:80", "", 0, everyones},
                            {"0:80", "", 0, everyones},
                            {"[::]:80", "", 0, everyones}}) {
    SCOPED_TRACE(one.text);
    try {
      EXPECT_EQ(parse_endpoint(one.text, "--flag"),
                (Endpoint{one.host, static_cast<std::uint16_t>(one.port)}));
      EXPECT_FALSE(one.because);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid);
      ASSERT_TRUE(one.because) << error.what();
      EXPECT_THAT(error.what(), *one.because);
    }
  }
}

TEST(Endpoint, a_host_alone_may_stand_in_brackets_or_not) {
  EXPECT_EQ(parse_host("[::1]", "MASTER_ADDR"), "::1");
  EXPECT_EQ(parse_host("::1", "MASTER_ADDR"), "::1");
  for (const char* text : {"", "head:29500", "0.0.0.0", "::", "[head]", " ", "head\n"}) {
    EXPECT_THROW(parse_host(text, "MASTER_ADDR"), Error) << text;
  }
}

TEST(Endpoint, loopback_is_known_in_every_form) {
  for (const char* host :
       {"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost", "LocalHost", "localhost.",
        "localhost.localdomain", "a.localhost", "ip6-localhost"}) {
    EXPECT_TRUE(is_loopback(host)) << host;
  }
  for (const char* host : {"10.0.0.1", "::2", "head", "localhosts", "127.example.org", ""}) {
    EXPECT_FALSE(is_loopback(host)) << host;
  }
}

TEST(Endpoint, an_address_of_one_link_is_known) {
  EXPECT_TRUE(is_link_local("fe80::1"));
  EXPECT_TRUE(is_link_local("fe80::1%eth0"));
  EXPECT_FALSE(is_link_local("fd77::1"));
  EXPECT_FALSE(is_link_local("169.254.0.1"));
}

// The given address is elsewhere if it belongs to a Kubernetes Service, a NAT or a published port.
TEST(Endpoint, the_host_of_a_meeting_listens_on_all_addresses_when_the_given_one_is_elsewhere) {
  EXPECT_TRUE(is_of_this_host("127.0.0.1"));
  EXPECT_FALSE(is_of_this_host(kNobodys));
  EXPECT_THROW(listen_tcp({kNobodys, 0}), Error);
  EXPECT_THROW(listen_tcp_for_others({kNobodys, 0}), Error);
  testing::internal::CaptureStderr();
  const Fd listener = listen_tcp_as_host({kNobodys, 0});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Says("socket.foreign_address", kNobodys));
  EXPECT_TRUE(connect_tcp({"127.0.0.1", local_port(listener)}, Deadline::after(5s)));
  const Fd exact = listen_tcp_as_host({"127.0.0.1", 0});
  EXPECT_EQ(local_address(exact), "127.0.0.1");
}

// Makes the kernel answer as if it was started with ipv6.disable=1. Returns false where that is not
// allowed.
bool take_ipv6_away() {
  std::array program = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// The number of the first check that fails on a kernel without IPv6; 0: none.
int first_wrong_without_ipv6() {
  const auto throws = [](const auto& action) {
    try {
      action();
      return false;
    } catch (const Error& error) {
      return std::string(error.what()).find("2001:db8::1") != std::string::npos;
    }
  };
  if (is_of_this_host("2001:db8::1")) return 1;
  if (!throws([] { listen_tcp({"2001:db8::1", 0}); })) return 2;
  if (!throws([] { connect_tcp({"2001:db8::1", 1}, Deadline::after(5s)); })) return 3;
  if (local_address(listen_tcp_as_host({"2001:db8::1", 0})) != "0.0.0.0") return 4;
  return 0;
}

TEST(Endpoint, a_kernel_without_ipv6_has_none_of_its_addresses) {
  const pid_t pid = fork();
  if (pid == 0) {
    if (!take_ipv6_away()) _exit(77);
    try {
      _exit(first_wrong_without_ipv6());
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      _exit(99);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "seccomp is forbidden here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Endpoint, a_name_without_an_address_is_looked_up_again_until_the_deadline) {
  testing::internal::CaptureStderr();
  const auto begun = std::chrono::steady_clock::now();
  try {
    connect_tcp({"no-such-host.invalid", 1}, Deadline::after(2500ms));
    ADD_FAILURE() << "it was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalid);
    EXPECT_THAT(error.what(), Says("nodes.address_unknown", "no-such-host.invalid"));
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_GE(std::chrono::steady_clock::now() - begun, 1s);
  EXPECT_THAT(said, Says("nodes.address_tried_again", "no-such-host.invalid"));
}

}  // namespace
}  // namespace paceline
