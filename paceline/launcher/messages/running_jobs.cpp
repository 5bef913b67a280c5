#include "paceline/launcher/messages/running_jobs.h"

#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <dirent.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include "paceline/engine/core/secret.h"
#include "paceline/engine/core/socket.h"
#include "paceline/launcher/messages/job_questions.h"

namespace paceline::launcher {
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

// A socket that listens under a mark's name.
struct Mark {
  std::string name;
  pid_t launcher = -1;
  unsigned long inode = 0;
};

// The columns of a line are Num, RefCount, Protocol, Flags, Type, St, Inode and Path. Connections
// to a mark bear its name as well.
std::optional<Mark> mark_in(const std::string& line) {
  constexpr unsigned kListens = 0x10000, kStream = 1;  // __SO_ACCEPTCON, SOCK_STREAM
  unsigned flags = 0, type = 0;
  Mark mark;
  const auto at = line.find(kPrefix);
  if (at == std::string::npos ||
      std::sscanf(line.c_str(), "%*[^:]: %*x %*x %x %x %*x %lu", &flags, &type, &mark.inode) != 3) {
    return {};
  }
  mark.name = line.substr(at + 1);
  mark.launcher = launcher_of(mark.name);
  if ((flags & kListens) == 0 || type != kStream || mark.launcher <= 0) return {};
  return mark;
}

enum class Holder { kOwn, kOtherUser, kUnknown, kNone };

// Finds out from /proc which process holds a mark.
class Holders {
 public:
  Holder holder_of(const Mark& mark) {
    auto known = processes_.find(mark.launcher);
    if (known == processes_.end()) known = processes_.emplace(mark.launcher, look(mark)).first;
    const Process& process = known->second;
    if (process.holder != Holder::kOwn) return process.holder;
    return process.sockets.contains(mark.inode) ? Holder::kOwn : Holder::kNone;
  }

 private:
  struct Process {
    Holder holder = Holder::kNone;
    std::set<unsigned long> sockets;  // kOwn: all that it has
  };

  static Process look(const Mark& mark) {
    const std::string folder = fmt::format("/proc/{}", mark.launcher);
    const auto user = user_of(folder);
    if (!user) return {Holder::kNone, {}};
    if (*user != geteuid() && geteuid() != 0) return {Holder::kOtherUser, {}};
    const std::unique_ptr<DIR, int (*)(DIR*)> descriptors(opendir((folder + "/fd").c_str()),
                                                          closedir);
    if (!descriptors) return {Holder::kUnknown, {}};
    Process process{Holder::kOwn, {}};
    while (const dirent* entry = readdir(descriptors.get())) {
      char target[64] = {};
      unsigned long inode = 0;
      if (readlinkat(dirfd(descriptors.get()), entry->d_name, target, sizeof target - 1) > 0 &&
          std::sscanf(target, "socket:[%lu]", &inode) == 1) {
        process.sockets.insert(inode);
      }
    }
    return process;
  }

  // The effective user of the process; nothing when there is no such process.
  static std::optional<uid_t> user_of(const std::string& folder) {
    std::ifstream status(folder + "/status");
    for (std::string line; std::getline(status, line);) {
      uid_t user = 0;
      if (std::sscanf(line.c_str(), "Uid: %*u %u", &user) == 1) return user;
    }
    return {};
  }

  std::map<pid_t, Process> processes_;
};

// All marks: one of each process in the order of pids, then the second of each.
std::vector<Mark> marks_in_turn() {
  std::map<pid_t, std::map<std::string, Mark>> of_process;
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    if (auto mark = mark_in(line)) of_process[mark->launcher].emplace(mark->name, *mark);
  }
  std::vector<Mark> marks;
  while (!of_process.empty()) {
    for (auto process = of_process.begin(); process != of_process.end();) {
      auto& left = process->second;
      marks.push_back(std::move(left.extract(left.begin()).mapped()));
      process = left.empty() ? of_process.erase(process) : std::next(process);
    }
  }
  return marks;
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
  Holders holders;
  std::vector<std::string> names;
  for (Mark& mark : marks_in_turn()) {
    if (holders.holder_of(mark) != Holder::kNone) names.push_back(std::move(mark.name));
  }
  return names;
}

std::vector<std::string> find_own_marks() {
  Holders holders;
  std::vector<std::string> names, unknown;
  for (Mark& mark : marks_in_turn()) {
    const Holder holder = holders.holder_of(mark);
    if (holder == Holder::kOwn) names.push_back(std::move(mark.name));
    if (holder == Holder::kUnknown) unknown.push_back(std::move(mark.name));
  }
  names.insert(names.end(), unknown.begin(), unknown.end());
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

}  // namespace paceline::launcher
