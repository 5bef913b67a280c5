#include "tests/launcher/launch/hosts_fixture.h"

#include <csignal>
#include <fstream>

#include <fmt/format.h>

namespace paceline::launcher {

void HostsFixture::SetUp() {
  const std::string reason = NetworkHosts::unavailable();
  if (!reason.empty()) GTEST_SKIP() << reason;
  hosts.emplace(2);
}

HostsFixture::Job HostsFixture::start(const Arguments& options, const std::string& script,
                                      const std::string& ssh) {
  Arguments all = {"run",         "--hosts",       hosts->list(1),
                   "--all-ranks", "--ssh-command", ssh.empty() ? hosts->ssh() : ssh};
  all.insert(all.end(), options.begin(), options.end());
  all.insert(all.end(), {"sh", "-c", "P=$RANK/$WORLD_SIZE/$TORCHELASTIC_RESTART_COUNT; " + script});
  return std::make_unique<PacelineProcess>(all);
}

std::string HostsFixture::until_done() const {
  return "echo $P; until [ -s " + hosts->directory().file("done") + " ]; do sleep 0.02; done";
}

void HostsFixture::let_end() const { hosts->directory().write("done", "x"); }

void HostsFixture::wait_for(PacelineProcess& job, int host, const std::string& place) {
  const std::string rank = place.substr(0, place.find('/'));
  job.wait_for_lines(fmt::format("[{}:{}] {}", NetworkHosts::name(host), rank, place), 1);
}

std::string HostsFixture::ssh_with_pid(const std::string& before) const {
  return hosts->ssh_after(before + "\necho $$ > " + hosts->directory().path() + "/pid-$1");
}

void HostsFixture::cut(int host) const {
  pid_t connection = 0;
  std::ifstream(hosts->directory().file("pid-" + NetworkHosts::name(host))) >> connection;
  ASSERT_GT(connection, 0);
  kill(connection, SIGKILL);
}

}  // namespace paceline::launcher
