// Open MPI's mpirun, without paceline run, on several hosts: network namespaces that a stand-in for
// ssh enters.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "paceline/engine/core/system/topology.h"

#include "tests/harness/says.h"
#include "tests/launcher/launch/network_hosts.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::HasSubstr;

class RunMpiHosts : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
    if (std::system("command -v mpirun.openmpi >/dev/null") != 0) {
      GTEST_SKIP() << "Open MPI is not installed (scripts/install_packages test)";
    }
    hosts.emplace(2);
  }

  // Open MPI calls its agent with options, the host and the words of a shell command. It needs
  // hosts with different names.
  std::string agent() const {
    const std::string path = hosts->directory().write(
        "rsh",
        "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nhost=$1; shift\n"
        "name=node$(echo $host | tr -d .)\nexec " +
            hosts->ssh() + " $host \"unshare --uts sh -c 'hostname $name; $*'\"\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  // Starts two ranks on each of two hosts.
  Outcome run(const std::string& how) const {
    const std::string secret =
        hosts->directory().write("secret", "0123456789abcdef0123456789abcdef");
    chmod(secret.c_str(), 0600);
    std::vector<std::string> arguments = {"--allow-run-as-root",
                                          "--oversubscribe",
                                          "--bind-to",
                                          "none",
                                          "--mca",
                                          "plm_rsh_agent",
                                          agent(),
                                          "--mca",
                                          "oob_tcp_if_include",
                                          "10.77.0.0/24",
                                          "--host",
                                          hosts->list(2),
                                          "-n",
                                          "4"};
    for (const std::string& variable :
         {"MASTER_ADDR=" + NetworkHosts::name(0), std::string("MASTER_PORT=29500"),
          "PACELINE_SECRET_FILE=" + secret, std::string("PACELINE_LOG_LEVEL=info")}) {
      arguments.insert(arguments.end(), {"-x", variable});
    }
    arguments.insert(arguments.end(), {RECORDED_PROGRAM, how});
    return PacelineProcess(arguments, {}, "/usr/bin/mpirun.openmpi").wait();
  }

  std::optional<NetworkHosts> hosts;
};

TEST_F(RunMpiHosts, ranks_know_their_places_and_form_a_group) {
  const Outcome outcome = run("ends");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("waiting\n"));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(outcome.out + outcome.err,
                Says("rendezvous.place", rank, 4, rank % 2, 2, "openmpi"));
  }
}

TEST_F(RunMpiHosts, ranks_divide_the_cores_of_their_host_alone) {
  const Outcome outcome = run("threads");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const int share = std::max(1, discover_topology().num_cores() / 2);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(outcome.out, HasSubstr(fmt::format("rank {}: {} threads\n", rank, share)));
  }
  EXPECT_THAT(outcome.err, Says("rendezvous.threads_divided", "openmpi", 2));
}

}  // namespace
}  // namespace paceline::launcher
