#include "paceline/core/host.h"

#include <array>
#include <climits>
#include <fstream>

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

// The 22nd field of /proc/self/stat, counted behind the command name's closing bracket: when the
// process started.
std::string start_time() {
  const std::string stat = read_line("/proc/self/stat");
  std::size_t at = stat.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  return at == std::string::npos ? "" : stat.substr(at + 1, stat.find(' ', at + 1) - at - 1);
}

}  // namespace

std::string host_token() {
  return read_line("/proc/sys/kernel/random/boot_id") + "/" + link_target("/proc/self/ns/net");
}

std::string process_token() {
  return link_target("/proc/self/ns/pid") + "/" + std::to_string(getpid()) + "/" + start_time();
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
