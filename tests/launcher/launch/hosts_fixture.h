#pragma once

// A job of `paceline run --hosts` on network namespaces, whose hosts can be lost. Tests are skipped
// if there can be no namespaces.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/launcher/launch/network_hosts.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {

class HostsFixture : public testing::Test {
 protected:
  using Arguments = std::vector<std::string>;
  using Job = std::unique_ptr<PacelineProcess>;

  // Two hosts.
  void SetUp() override;

  // One rank a host. `script` finds its rank, world size and generation in $P; connections are made
  // by `ssh`, the hosts' own when it is empty.
  Job start(const Arguments& options, const std::string& script, const std::string& ssh = "");
  // A script that prints its place and waits for let_end().
  std::string until_done() const;
  void let_end() const;
  // Waits until the rank of this host has printed its place.
  static void wait_for(PacelineProcess& job, int host, const std::string& place);

  // Connections that can be cut: each leaves its pid and runs `before` (as ssh_after()) first.
  std::string ssh_with_pid(const std::string& before = "") const;
  void cut(int host) const;

  std::optional<NetworkHosts> hosts;
};

}  // namespace paceline::launcher
