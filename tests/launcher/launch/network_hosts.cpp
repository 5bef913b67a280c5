#include "tests/launcher/launch/network_hosts.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {
namespace {

void shell(const std::string& script) {
  if (std::system(("set -e; " + script).c_str()) != 0) {
    throw Error(ErrorCode::kSystem, "failed: " + script);
  }
}

void write_script(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  chmod(path.c_str(), 0755);
}

// Starts a process in a new network namespace. It ends when this process ends.
pid_t start_keeper() {
  int ready[2];
  if (pipe(ready) != 0) throw system_error("pipe");
  const Fd from(ready[0]), to(ready[1]);
  const pid_t pid = fork();
  if (pid < 0) throw system_error("fork");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const bool made = unshare(CLONE_NEWNET) == 0;
    if (write(to.get(), made ? "+" : "-", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char answer = '-';
  if (read(from.get(), &answer, 1) != 1 || answer != '+') throw system_error("unshare");
  return pid;
}

}  // namespace

std::string NetworkHosts::unavailable() {
  if (geteuid() != 0) return "network namespaces need root";
  if (std::system("command -v ip nsenter >/dev/null") != 0) return "iproute2 is not installed";
  const pid_t pid = fork();
  if (pid == 0) _exit(unshare(CLONE_NEWNET) == 0 ? 0 : 1);
  int status = 1;
  waitpid(pid, &status, 0);
  return status == 0 ? "" : "network namespaces are not allowed here";
}

NetworkHosts::NetworkHosts(int count) {
  if (unshare(CLONE_NEWNET) != 0) throw system_error("unshare");
  shell(
      "ip link set lo up; ip link add bridge0 type bridge; "
      "ip addr add 10.77.0.254/24 dev bridge0; ip link set bridge0 up");
  for (int i = 0; i < count; ++i) {
    keepers_.push_back(start_keeper());
    std::ofstream(directory_.file(name(i))) << keepers_.back();
    shell(fmt::format(
        "ip link add v{0} type veth peer name eth0 netns {1}; ip link set v{0} master bridge0 up; "
        "nsenter -t {1} -n sh -c 'ip link set lo up; ip addr add {2}/24 dev eth0; "
        "ip link set eth0 up'",
        i, keepers_.back(), name(i)));
  }
  std::filesystem::create_directory(temporary());
  write_script(ssh(),
               "#!/bin/sh\n"
               "keeper=$(cat " +
                   directory_.path() +
                   "/${1#*@} 2>/dev/null) || {\n"
                   "  echo \"ssh: Could not resolve hostname $1: Name or service not known\" >&2\n"
                   "  exit 255\n"
                   "}\n"
                   "exec nsenter -t $keeper -n env -i PATH=/usr/bin:/bin HOME=/ TMPDIR=" +
                   temporary() + " sh -c \"$2\"\n");
}

NetworkHosts::~NetworkHosts() {
  for (const pid_t keeper : keepers_) {
    kill(keeper, SIGKILL);
    waitpid(keeper, nullptr, 0);
  }
}

std::string NetworkHosts::list(int slots) const {
  std::string text;
  for (std::size_t i = 0; i < keepers_.size(); ++i) {
    text += fmt::format("{}{}:{}", i == 0 ? "" : ",", name(static_cast<int>(i)), slots);
  }
  return text;
}

std::string NetworkHosts::ssh_after(const std::string& script) const {
  const std::string path = directory_.file("ssh-after");
  write_script(path, "#!/bin/sh\n" + script + "\nexec " + ssh() + " \"$@\"\n");
  return path;
}

void NetworkHosts::unplug(int host) const { shell(fmt::format("ip link set v{} down", host)); }

}  // namespace paceline::launcher
