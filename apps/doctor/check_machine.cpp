// The checks of `paceline doctor` that look at the machine and the limits of this process.

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/core/system/topology.h"
#include "paceline/launcher/messages/running_jobs.h"
#include "paceline/launcher/placement/placement_warnings.h"

#include "apps/doctor/doctor_report.h"

namespace paceline::apps {

namespace {

constexpr double kGiB = 1 << 30;
constexpr double kMiB = 1 << 20;
// /dev/shm holds in-memory checkpoints and buffers of other libraries. Less free space than this is
// enough only for toy models.
constexpr double kSmallShm = 512 * kMiB;
constexpr rlim_t kFewFiles = 1024;

Finding check_cpu() {
  const std::string flags = " " + cpu_property("flags") + " ";
  auto has = [&](const char* flag) {
    return flags.find(fmt::format(" {} ", flag)) != std::string::npos;
  };
  std::string features;
  for (const char* flag : {"avx2", "fma", "f16c", "avx512f", "avx512_bf16", "amx_bf16"}) {
    if (has(flag)) features += fmt::format(" {}", flag);
  }
  std::string model = cpu_property("model name");
  if (model.empty()) model = "unknown model";
  Finding finding{"cpu", CheckResult::kOk, model + ";" + (features.empty() ? " no AVX2" : features),
                  ""};
#if defined(__x86_64__)
  if (!has("avx2")) {
    finding.result = CheckResult::kWarn;
    finding.advice =
        "without AVX2 training is several times slower; in a virtual machine pass the "
        "host's cpu through";
  }
#endif
  return finding;
}

Finding check_cores() {
  const Topology topology = discover_topology();
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  Finding finding{"cores", CheckResult::kOk, "", ""};
  finding.text = fmt::format("{} physical cores, {} of {} cpus given to this process",
                             topology.num_cores(), topology.num_cpus(), online);
  if (topology.quota) {
    finding.text += fmt::format("; {} grants {:.3g} cpus of time", topology.quota->source,
                                topology.quota->cpus);
    if (topology.quota->cpus < topology.num_cores()) {
      finding.result = CheckResult::kWarn;
      finding.advice =
          "more busy threads than the cgroup grants are throttled; raise its cpu limit "
          "(docker run --cpus, cpu.max)";
    }
  }
  return finding;
}

Finding check_thread_variables() {
  Finding finding{"threads", CheckResult::kOk, "no variable overrides them", ""};
  const auto inherited = launcher::inherited_environment();
  const auto threads = launcher::inherited_threads(inherited);
  if (threads) finding.text = fmt::format("OMP_NUM_THREADS={} applies to every rank", *threads);
  const auto warnings = launcher::variable_warnings(inherited);
  if (!warnings.empty()) {
    finding.text = warnings.front().what + ": " + warnings.front().price;
    finding.advice = warnings.front().cure;
  } else if (threads) {
    finding.advice = "unset it unless it is intended: paceline run counts the cores of each rank";
  }
  if (!finding.advice.empty()) finding.result = CheckResult::kWarn;
  return finding;
}

Finding check_running_jobs() {
  const auto jobs = launcher::find_running_jobs();
  if (jobs.empty()) return {"running jobs", CheckResult::kOk, "no other paceline job here", ""};
  std::string text;
  for (const launcher::RunningJob& job : jobs) {
    text += fmt::format("{}pid {}: {} on cpus {}", text.empty() ? "" : "; ", job.launcher,
                        counted(job.num_ranks, "rank"), format_cpu_list(job.cpus));
  }
  return {"running jobs", CheckResult::kWarn, text,
          "jobs on the same cores slow each other down; give each job its own cores: "
          "taskset -c LIST paceline run ..."};
}

// Checks whether memory can be bound to NUMA nodes, because access to memory on another node is
// slower.
Finding check_memory_policy() {
  const auto nodes = discover_topology().numa_nodes;
  if (nodes.size() < 2) return {"NUMA", CheckResult::kOk, "one node", ""};
  int mode = 0;
  if (syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0) {
    return {"NUMA", CheckResult::kOk, fmt::format("{} nodes, memory can be bound", nodes.size()),
            ""};
  }
  return {"NUMA", CheckResult::kWarn,
          fmt::format("{} nodes, but memory policies: {}", nodes.size(), std::strerror(errno)),
          "ranks use their own node's memory until it is full; to bind memory, allow memory "
          "policies: docker run --cap-add SYS_NICE"};
}

Finding check_memory() {
  struct sysinfo info {};
  sysinfo(&info);
  const double unit = info.mem_unit;
  return {"memory", CheckResult::kOk,
          fmt::format("{:.1f} GiB, {:.1f} GiB free", info.totalram * unit / kGiB,
                      info.freeram * unit / kGiB),
          ""};
}

Finding check_shm() {
  struct statvfs status {};
  if (statvfs("/dev/shm", &status) != 0) {
    return {"/dev/shm", CheckResult::kWarn, std::strerror(errno),
            "mount it: mount -t tmpfs -o size=50% tmpfs /dev/shm"};
  }
  if (access("/dev/shm", W_OK) != 0) {
    return {"/dev/shm", CheckResult::kFail, fmt::format("not writable: {}", std::strerror(errno)),
            "checkpoints in memory, Open MPI, NCCL and UCX need it: chmod 1777 /dev/shm"};
  }
  const double size = static_cast<double>(status.f_blocks) * static_cast<double>(status.f_frsize);
  const double free = static_cast<double>(status.f_bavail) * static_cast<double>(status.f_frsize);
  Finding finding{"/dev/shm", CheckResult::kOk,
                  fmt::format("{:.0f} MiB, {:.0f} MiB free", size / kMiB, free / kMiB), ""};
  if (free < kSmallShm) {
    finding.result = CheckResult::kWarn;
    finding.advice =
        "Paceline's own shared memory uses none of it, but checkpoints in memory, Open MPI, NCCL "
        "and UCX may need more: docker run --shm-size=2g, or mount -o remount,size=2g /dev/shm";
  }
  return finding;
}

Finding check_memfd() {
  const Fd fd(memfd_create("paceline-doctor", MFD_CLOEXEC));
  if (fd && ftruncate(fd.get(), 4096) == 0) return {"memfd", CheckResult::kOk, "works", ""};
  return {"memfd", CheckResult::kFail, std::strerror(errno),
          "paceline run passes the job's secret this way; a seccomp filter may forbid it"};
}

Finding check_pidfd() {
  const Fd fd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (fd) return {"pidfd", CheckResult::kOk, "works", ""};
  return {"pidfd", CheckResult::kFail, std::strerror(errno),
          "paceline run needs Linux 5.3 or newer, and a seccomp filter that allows pidfd_open"};
}

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : fmt::to_string(limit);
}

Finding check_open_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  Finding finding{
      "open files", CheckResult::kOk,
      fmt::format("soft {}, hard {}", limit_text(limit.rlim_cur), limit_text(limit.rlim_max)), ""};
  if (limit.rlim_max < kFewFiles) {
    finding.result = CheckResult::kWarn;
    finding.advice = "enough for some 100 ranks at most; raise it: ulimit -Hn 65536";
  }
  return finding;
}

// The value of the setting, such as "always [madvise] never"; empty if the kernel does not have it.
std::string huge_page_modes(const char* setting) {
  std::ifstream file(std::string("/sys/kernel/mm/transparent_hugepage/") + setting);
  std::string modes;
  std::getline(file, modes);
  return modes;
}

Finding check_huge_pages() {
  const std::string modes = huge_page_modes("enabled");
  if (modes.empty()) return {"huge pages", CheckResult::kOk, "not offered by this kernel", ""};
  Finding finding{"huge pages", CheckResult::kOk, "transparent: " + modes, ""};
  if (modes.find("[never]") != std::string::npos) {
    finding.result = CheckResult::kWarn;
    finding.advice =
        "large buffers are faster with them: echo madvise > "
        "/sys/kernel/mm/transparent_hugepage/enabled";
  }
  const std::string shared = huge_page_modes("shmem_enabled");
  if (shared.find("[never]") != std::string::npos || shared.find("[deny]") != std::string::npos) {
    finding.text +=
        "; shared memory has none, which slows large all-reduces by about a tenth (echo advise > "
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled)";
  }
  return finding;
}

Finding check_loopback() {
  try {
    using namespace std::chrono_literals;
    const Fd listener = listen_tcp({"127.0.0.1", 0});
    connect_tcp({"127.0.0.1", local_port(listener)}, Deadline::after(1s));
    return {"loopback", CheckResult::kOk, "127.0.0.1 accepts connections", ""};
  } catch (const Error& error) {
    return {"loopback", CheckResult::kFail, error.what(), "bring it up: ip link set lo up"};
  }
}

}  // namespace

std::vector<Finding> check_machine() {
  return {check_cpu(),          check_cores(),         check_thread_variables(),
          check_running_jobs(), check_memory_policy(), check_memory(),
          check_shm(),          check_memfd(),         check_pidfd(),
          check_open_files(),   check_huge_pages(),    check_loopback()};
}

}  // namespace paceline::apps
