#pragma once

// A job of `paceline run --hosts` on network namespaces, with hosts that can be lost. The tests are
// skipped if no namespaces can be made.

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

  // Makes two hosts.
  void SetUp() override;

  // Starts one rank on each host. `script` finds its rank, world size and generation in $P.
  // Connections are made by `ssh`; empty: by the command of `hosts`.
  Job start(const Arguments& options, const std::string& script, const std::string& ssh = "");
  // A script that prints $P and waits for let_end().
  std::string until_done() const;
  void let_end() const;
  // Waits until the rank of this host has printed `place`.
  static void wait_for(PacelineProcess& job, int host, const std::string& place);

  // Makes connections that cut() can cut: each one first leaves its pid and runs `before` (see
  // ssh_after()).
  std::string ssh_with_pid(const std::string& before = "") const;
  void cut(int host) const;

  std::optional<NetworkHosts> hosts;
};

}  // namespace paceline::launcher
