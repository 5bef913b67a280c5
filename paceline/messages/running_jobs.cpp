#include "paceline/messages/running_jobs.h"

#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include "paceline/core/secret.h"
#include "paceline/core/socket.h"
#include "paceline/messages/job_questions.h"

namespace paceline::launch {
namespace {

constexpr const char* kPrefix = "@paceline-job/";  // as /proc/net/unix writes the leading zero
constexpr int kMostCpus = 8192;
constexpr int kBacklog = 128;
constexpr std::size_t kRandomBytes = 8;

// False when it is not one of ours.
bool parse_mark(const std::string& mark, RunningJob& job) {
  int length = 0;
  const int fields = std::sscanf(mark.c_str(), "paceline-job/%d/%dx%d/%*16[0-9a-f]%n",
                                 &job.launcher, &job.num_ranks, &job.num_threads, &length);
  return fields == 3 && static_cast<std::size_t>(length) == mark.size() && job.launcher > 0 &&
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

JobMark mark_running_job(int num_ranks, int num_threads) {
  JobMark mark;
  mark.name = fmt::format("{}{}/{}x{}/{}", kPrefix + 1, getpid(), num_ranks, num_threads,
                          random_hex(kRandomBytes));
  mark.listener = listen_unix(mark.name, kBacklog);
  return mark;
}

std::vector<std::string> find_marks() {
  std::map<pid_t, std::set<std::string>> of_process;  // connections to a mark also bear its name
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    const auto at = line.find(kPrefix);
    if (at == std::string::npos) continue;
    const std::string name = line.substr(at + 1);
    if (const pid_t launcher = launcher_of(name); launcher > 0) of_process[launcher].insert(name);
  }
  std::vector<std::string> names;
  while (!of_process.empty()) {
    for (auto process = of_process.begin(); process != of_process.end();) {
      auto& left = process->second;
      names.push_back(std::move(left.extract(left.begin()).value()));
      process = left.empty() ? of_process.erase(process) : std::next(process);
    }
  }
  return names;
}

pid_t launcher_of(const std::string& mark) {
  RunningJob job;
  return parse_mark(mark, job) ? job.launcher : -1;
}

std::vector<RunningJob> find_running_jobs() {
  std::map<pid_t, RunningJob> jobs;
  for (const std::string& mark : find_marks()) {
    RunningJob job;
    if (!parse_mark(mark, job) || job.launcher == getpid() || jobs.contains(job.launcher)) continue;
    if (job.num_ranks == 0) continue;  // its children connect to other hosts
    if (!is_held_by_its_launcher(mark)) continue;
    std::set<int> cpus;
    for (const pid_t rank : children_of(job.launcher)) add_cpus_of(rank, cpus);
    if (cpus.empty()) continue;
    job.cpus.assign(cpus.begin(), cpus.end());
    jobs.emplace(job.launcher, std::move(job));
  }
  std::vector<RunningJob> all;
  for (auto& [launcher, job] : jobs) all.push_back(std::move(job));
  return all;
}

}  // namespace paceline::launch
