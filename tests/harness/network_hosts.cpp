#include "tests/harness/network_hosts.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"

namespace paceline::harness {
namespace {

// The most bytes that a link may send at once after a pause. The timer that releases packets is
// late by some tens of microseconds, and a smaller burst would lose that time: one plain stream
// reaches 0.91 of 1 Gbit/s with 70,000 bytes, and 0.955 with this value, which is all that the
// headers allow.
constexpr int kMinBurst = 128 << 10;
constexpr double kBurstSeconds = 1e-3;

Fd this_namespace() {
  Fd space(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (!space) throw system_error("opening the network namespace");
  return space;
}

// Returns an empty Fd, with errno set, if this user may not make namespaces. Uses a thread of its
// own, so that the calling thread stays in its namespace.
Fd new_namespace() {
  Fd space;
  int error = 0;
  std::thread([&] {
    if (::unshare(CLONE_NEWNET) == 0) {
      space = this_namespace();
    } else {
      error = errno;
    }
  }).join();
  errno = error;
  return space;
}

Fd require_namespace() {
  Fd space = new_namespace();
  if (!space) throw system_error("making a network namespace");
  return space;
}

void move_to(const Fd& space) {
  if (::setns(space.get(), CLONE_NEWNET) != 0) throw system_error("setns()");
}

std::string path_of(const Fd& fd) { return fmt::format("/proc/{}/fd/{}", getpid(), fd.get()); }

[[noreturn]] void execute(const Fd& space, const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const auto& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int quiet = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  ::dup2(quiet, STDOUT_FILENO);
  if (::setns(space.get(), CLONE_NEWNET) == 0) ::execvp(arguments[0], arguments.data());
  _exit(127);
}

int exit_code_of(const Fd& space, const std::vector<std::string>& command) {
  const pid_t pid = ::fork();
  if (pid < 0) throw system_error("fork()");
  if (pid == 0) execute(space, command);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string port_of(int host) { return fmt::format("port{}", host); }

std::vector<std::string> limit_of(const std::string& device, double gbit_per_s) {
  const auto burst = std::max(kMinBurst, static_cast<int>(gbit_per_s * 1e9 / 8 * kBurstSeconds));
  return {"tc",
          "qdisc",
          "replace",
          "dev",
          device,
          "root",
          "tbf",
          "rate",
          fmt::format("{}mbit", static_cast<int>(gbit_per_s * 1000)),
          "burst",
          std::to_string(burst),
          "latency",
          "50ms"};
}

}  // namespace

std::string NetworkHosts::why_not() {
  if (::geteuid() != 0) return "network namespaces need root";
  const Fd space = new_namespace();
  if (!space) return std::string("no network namespace can be made: ") + std::strerror(errno);
  for (const char* tool : {"ip", "tc"}) {
    if (exit_code_of(space, {tool, "-V"}) != 0) {
      return std::string("there is no program ") + tool + " (apt-get install iproute2)";
    }
  }
  if (exit_code_of(space, {"ip", "link", "add", "bridge0", "type", "bridge"}) != 0) {
    return "this kernel makes no bridges";
  }
  return "";
}

NetworkHosts::NetworkHosts(int count, double gbit_per_s, double flow_gbit_per_s)
    : home_(this_namespace()), bridge_(require_namespace()) {
  run(bridge_, {"ip", "link", "add", "bridge0", "type", "bridge"});
  run(bridge_, {"ip", "link", "set", "bridge0", "up"});
  for (int host = 0; host < count; ++host) {
    hosts_.push_back(require_namespace());
    make_link(host, gbit_per_s);
  }
  for (int host = 0; host < count && flow_gbit_per_s > 0; ++host) {
    limit_flows(host, gbit_per_s, flow_gbit_per_s);
  }
}

void NetworkHosts::make_link(int host, double gbit_per_s) const {
  const Fd& space = hosts_[static_cast<std::size_t>(host)];
  const std::string port = port_of(host);
  run(bridge_,
      {"ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", path_of(space)});
  run(bridge_, {"ip", "link", "set", port, "master", "bridge0", "up"});
  run(space, {"ip", "link", "set", "lo", "up"});
  run(space, {"ip", "link", "set", "eth0", "up"});
  run(space, {"ip", "address", "add", address(host) + "/24", "dev", "eth0"});
  run(space, {"ip", "address", "add", address_v6(host) + "/64", "dev", "eth0", "nodad"});
  if (gbit_per_s <= 0) return;
  // Results must be comparable, so this replaces the machine's choice of congestion control. A
  // namespace may lack one of the two algorithms.
  run(space,
      {"sh", "-c",
       "exec 2>/dev/null; cd /proc/sys/net/ipv4; echo cubic >tcp_congestion_control || echo reno "
       ">tcp_congestion_control"});
  run(bridge_, limit_of(port, gbit_per_s));
  run(space, limit_of("eth0", gbit_per_s));
}

// Gives each connection a class of 1 Mbit/s that may borrow from the link's class, up to
// `flow_gbit_per_s`.
void NetworkHosts::limit_flows(int host, double gbit_per_s, double flow_gbit_per_s) const {
  constexpr int kFlows = 64, kPortMask = 0x7e;  // clients have even ports
  const auto megabits = [](double gbit) { return static_cast<int>(gbit * 1000); };
  std::string script = fmt::format(
      "tc -batch - <<'END'\n"
      "qdisc replace dev eth0 root handle 1: htb\n"
      "class add dev eth0 parent 1: classid 1:1 htb rate {}mbit burst {} quantum 60000\n",
      megabits(gbit_per_s), kMinBurst);
  for (int peer = 0; peer < count(); ++peer) {
    if (peer == host) continue;
    const int client_port_at = peer < host ? 20 : 22;  // offset in the packet, in bytes
    for (int flow = 0; flow < kFlows; ++flow) {
      const int minor = (peer + 1) * kFlows + flow;
      script += fmt::format(
          "class add dev eth0 parent 1:1 classid 1:{:x} htb rate 1mbit ceil {}mbit cburst {} "
          "quantum 60000\n"
          "filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst {} "
          "match u16 {:#x} {:#x} at {} flowid 1:{:x}\n",
          minor, megabits(flow_gbit_per_s), kMinBurst, address(peer), flow * 2, kPortMask,
          client_port_at, minor);
    }
  }
  run(hosts_[static_cast<std::size_t>(host)], {"sh", "-c", script + "END\n"});
}

std::string NetworkHosts::address(int host) const { return fmt::format("10.77.0.{}", host + 1); }
std::string NetworkHosts::address_v6(int host) const { return fmt::format("fd77::{:x}", host + 1); }
std::string NetworkHosts::subnet() { return "10.77.0.0/24"; }

std::string NetworkHosts::path(int host) const {
  return path_of(hosts_[static_cast<std::size_t>(host)]);
}

void NetworkHosts::enter(int host) const { move_to(hosts_[static_cast<std::size_t>(host)]); }
void NetworkHosts::leave() const { move_to(home_); }

void NetworkHosts::set_link(int host, bool up) const {
  run(hosts_[static_cast<std::size_t>(host)], {"ip", "link", "set", "eth0", up ? "up" : "down"});
}

void NetworkHosts::cut(int host) const {
  run(bridge_, {"ip", "link", "set", port_of(host), "nomaster"});
}

void NetworkHosts::mend(int host) const {
  run(bridge_, {"ip", "link", "set", port_of(host), "master", "bridge0"});
}

void NetworkHosts::run(const Fd& space, const std::vector<std::string>& command) const {
  const int code = exit_code_of(space, command);
  if (code != 0) {
    fail(ErrorCode::kSystem, "`{}` ended with code {}", fmt::join(command, " "), code);
  }
}

}  // namespace paceline::harness
