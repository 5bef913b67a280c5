// A job that meets at a host name which this host itself resolves to loopback, as in Debian's
// /etc/hosts.

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/socket.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/network_hosts.h"

namespace paceline {
namespace {

using harness::NetworkHosts;
using namespace std::chrono_literals;

TEST(OwnName, is_told_from_what_means_loopback) {
  EXPECT_TRUE(resolves_to_loopback_only_here("box", {"127.0.1.1"}));
  EXPECT_TRUE(resolves_to_loopback_only_here("box.cluster", {"::1", "10.0.0.1"}));
  EXPECT_FALSE(resolves_to_loopback_only_here("box", {"10.0.0.1", "127.0.1.1"}));
  for (const char* host : {"localhost", "localhost.localdomain", "ip6-localhost", "x.localhost",
                           "127.0.0.1", "127.0.1.1", "127.1", "::1"}) {
    EXPECT_FALSE(resolves_to_loopback_only_here(host, {"127.0.0.1"})) << host;
  }
}

TEST(OwnName, an_address_and_localhost_stay_what_they_are) {
  const Fd numeric = listen_tcp_for_others({"127.0.0.1", 0});
  EXPECT_EQ(local_address(numeric), "127.0.0.1");
  EXPECT_TRUE(is_loopback(local_address(listen_tcp_for_others({"localhost", 0}))));
}

// Runs a rank in a child process, on its host. Returns 0 if the sum was right, otherwise 1; an
// error is printed.
int run_rank(const NetworkHosts& hosts, int rank, const FreshDirectory& directory) {
  ::alarm(60);
  try {
    hosts.enter(rank);
    const std::string names = directory.file("hosts" + std::to_string(rank));
    std::ofstream(names) << "127.0.0.1 localhost\n"
                         << (rank == 0 ? "127.0.1.1" : hosts.address(0)) << " paceline-box\n";
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount(names.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) != 0) {
      throw system_error("a file /etc/hosts for one rank");
    }
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", "2", 1);
    ::setenv("MASTER_ADDR", "paceline-box", 1);
    ::setenv("MASTER_PORT", "29571", 1);
    ::setenv("PACELINE_SECRET_FILE", directory.file("secret").c_str(), 1);
    const auto group =
        init_process_group({.rendezvous = {.timeout = 20s}, .group = {.timeout = 20s}});
    return all_reduce_value(*group, 1) == 2 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

bool is_mount_point(const std::string& path) {
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string word;
    for (int i = 0; i < 5; ++i) words >> word;
    if (word == path) return true;
  }
  return false;
}

TEST(OwnName, of_rank_0_may_lead_to_loopback_on_its_host) {
  if (const auto reason = NetworkHosts::why_not(); !reason.empty()) GTEST_SKIP() << reason;
  if (!is_mount_point("/")) GTEST_SKIP() << "in a chroot no rank can have its own /etc/hosts";
  const NetworkHosts hosts(2);
  const FreshDirectory directory;
  std::ofstream(directory.file("secret")) << "a secret that both of the hosts know\n";
  ::chmod(directory.file("secret").c_str(), 0600);
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) ::_exit(run_rank(hosts, rank, directory));
    ranks.push_back(pid);
  }
  for (const pid_t pid : ranks) {
    int status = -1;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

}  // namespace
}  // namespace paceline
