#pragma once

// Several agents of one job on this machine, as if each one were on a host of its own.

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "paceline/launcher/process/rank_resources.h"

#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {

class JobNodes : public testing::Test {
 protected:
  JobNodes() {
    std::ofstream(secret_) << "0123456789abcdef0123456789abcdef\n";
    chmod(secret_.c_str(), 0600);
  }

  using Node = std::unique_ptr<PacelineProcess>;
  // `conf` is the value of --rdzv-conf. If it is empty, the agents find out which of them listens.
  Node start_with(const std::string& conf, const std::string& nnodes, const std::string& script,
                  std::vector<std::string> options) {
    std::vector<std::string> arguments = {"run",
                                          "--nnodes",
                                          nnodes,
                                          "--rdzv-endpoint",
                                          "127.0.0.1:" + std::to_string(port_.port),
                                          "--all-ranks",
                                          "--shutdown-timeout",
                                          "2"};
    if (!conf.empty()) arguments.insert(arguments.end(), {"--rdzv-conf", conf});
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(),
                     {"sh", "-c", "P=$RANK/$WORLD_SIZE/$TORCHELASTIC_RESTART_COUNT; " + script});
    return std::make_unique<PacelineProcess>(
        arguments, PacelineProcess::Variables{{"PACELINE_SECRET_FILE", secret_}});
  }
  // Starts the node whose agent is the coordinator.
  Node start_first(const std::string& nnodes, const std::string& script,
                   std::vector<std::string> options = {}) {
    return start_with("is_host=true", nnodes, script, std::move(options));
  }
  // Starts a node whose agent is not the coordinator.
  Node start(const std::string& nnodes, const std::string& script,
             std::vector<std::string> options = {}) {
    return start_with("is_host=false", nnodes, script, std::move(options));
  }

  const FreshDirectory directory_;
  const std::string secret_ = directory_.file("secret");
  const ReservedPort port_ = reserve_port(0);
};

}  // namespace paceline::launcher
