#include "paceline/launch/running_jobs.h"

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace paceline::launch {
namespace {

constexpr const char* kPrefix = "@paceline-job/";  // as /proc/net/unix writes the leading zero
constexpr int kMostCpus = 8192;
constexpr int kBacklog = 128;

// The name as it stands in the table of sockets; nothing when it is not one of ours.
bool parse_name(const std::string& name, RunningJob& job) {
  int length = 0;
  const int fields = std::sscanf(name.c_str(), "@paceline-job/%d/%dx%d%n", &job.launcher,
                                 &job.num_ranks, &job.num_threads, &length);
  return fields == 3 && static_cast<std::size_t>(length) == name.size() && job.launcher > 0 &&
         job.num_ranks >= 0 && job.num_threads >= 0;
}

std::vector<pid_t> children_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{0}/task/{0}/children", pid));
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

void add_cpus_of(pid_t pid, std::set<int>& cpus) {
  cpu_set_t* set = CPU_ALLOC(kMostCpus);
  const std::size_t size = CPU_ALLOC_SIZE(kMostCpus);
  CPU_ZERO_S(size, set);
  if (sched_getaffinity(pid, size, set) == 0) {
    for (int cpu = 0; cpu < kMostCpus; ++cpu) {
      if (CPU_ISSET_S(cpu, size, set)) cpus.insert(cpu);
    }
  }
  CPU_FREE(set);
}

}  // namespace

std::string mark_name(pid_t launcher, int num_ranks, int num_threads) {
  return fmt::format("{}{}/{}x{}", kPrefix + 1, launcher, num_ranks, num_threads);
}

Fd mark_running_job(int num_ranks, int num_threads) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = mark_name(getpid(), num_ranks, num_threads);
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // after the zero that begins it
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return Fd();
  }
  return fd;
}

std::vector<std::string> find_marks() {
  std::map<pid_t, std::string> marks;  // connections to a mark bear its name, too
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    const auto at = line.find(kPrefix);
    RunningJob job;
    if (at == std::string::npos || !parse_name(line.substr(at), job)) continue;
    marks[job.launcher] = line.substr(at + 1);
  }
  std::vector<std::string> names;
  for (auto& [launcher, name] : marks) names.push_back(std::move(name));
  return names;
}

std::vector<RunningJob> find_running_jobs() {
  std::vector<RunningJob> jobs;
  for (const std::string& name : find_marks()) {
    RunningJob job;
    if (!parse_name("@" + name, job) || job.launcher == getpid()) continue;
    if (job.num_ranks == 0) continue;  // its children connect to other hosts
    std::set<int> cpus;
    for (const pid_t rank : children_of(job.launcher)) add_cpus_of(rank, cpus);
    if (cpus.empty()) continue;
    job.cpus.assign(cpus.begin(), cpus.end());
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace paceline::launch
