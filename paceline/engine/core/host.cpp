#include "paceline/engine/core/host.h"

#include <array>
#include <climits>
#include <fstream>
#include <sstream>

#include <sched.h>
#include <unistd.h>

namespace paceline {
namespace {

std::string read_line(const char* path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

std::string link_target(const char* path) {
  std::array<char, 256> target{};
  const ssize_t length = readlink(path, target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<std::size_t>(length)) : std::string();
}

}  // namespace

std::string boot_id() { return read_line("/proc/sys/kernel/random/boot_id"); }

std::string pid_namespace() { return link_target("/proc/self/ns/pid"); }

// The state is the first field behind the command name's closing bracket, the start the 20th.
std::optional<ProcessStatus> process_status(pid_t pid) {
  const std::string stat = read_line(("/proc/" + std::to_string(pid) + "/stat").c_str());
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream fields(stat.substr(name_end + 1));
  ProcessStatus status;
  fields >> status.state;
  std::string skipped;
  for (int field = 2; field < 20; ++field) fields >> skipped;
  fields >> status.start_ticks;
  return status;
}

std::string host_token() { return boot_id() + "/" + link_target("/proc/self/ns/net"); }

std::string process_token() {
  const auto self = process_status(getpid());
  return pid_namespace() + "/" + std::to_string(getpid()) + "/" +
         (self ? std::to_string(self->start_ticks) : "");
}

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
  return cpus;
}

}  // namespace paceline
