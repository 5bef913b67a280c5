#include "paceline/engine/core/system/host.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <fstream>
#include <memory>
#include <sstream>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/socket.h"

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

// The state is the first field after the closing bracket of the command name, the start time the
// 20th.
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

std::string cpu_property(std::string_view name) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with(name) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

namespace {

// cpu_set_t alone ends at processor 1,023; Linux has at most 8,192.
using CpuMask = std::array<cpu_set_t, 8>;
constexpr int kMaxCpus = 8 * sizeof(CpuMask);

}  // namespace

std::vector<int> allowed_cpus(pid_t thread) {
  CpuMask mask{};
  std::vector<int> cpus;
  if (sched_getaffinity(thread, sizeof mask, mask.data()) != 0) return cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, sizeof mask, mask.data())) cpus.push_back(cpu);
  }
  return cpus;
}

bool bind_to_cpus(const std::vector<int>& cpus) {
  CpuMask mask{};
  for (const int cpu : cpus) CPU_SET_S(cpu, sizeof mask, mask.data());
  return sched_setaffinity(0, sizeof mask, mask.data()) == 0;
}

namespace {

using Mark = std::atomic<pid_t>;

// A page that is zero until the process stores its PID there; fork() wipes the child's copy.
// Returns null if the kernel cannot wipe pages on fork. The page is never unmapped.
Mark* make_mark() {
  const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (madvise(page, bytes, MADV_WIPEONFORK) == 0) return static_cast<Mark*>(page);
  munmap(page, bytes);
  return nullptr;
}

}  // namespace

pid_t OwnerProcess::current() {
  static Mark* const mark = make_mark();
  if (mark == nullptr) return getpid();
  pid_t pid = mark->load(std::memory_order_relaxed);
  if (pid == 0) {
    pid = getpid();
    mark->store(pid, std::memory_order_relaxed);
  }
  return pid;
}

namespace {

// An address of the first interface of `interfaces` for which `fits` is true: one of the preferred
// family if the interface has one. Null if no interface fits.
template <class Fits>
const InterfaceAddress* find(const std::vector<InterfaceAddress>& interfaces, bool prefer_v6,
                             Fits fits) {
  const auto first = std::find_if(interfaces.begin(), interfaces.end(), fits);
  if (first == interfaces.end()) return nullptr;
  for (const auto& one : interfaces) {
    if (one.interface == first->interface && one.is_v6 == prefer_v6) return &one;
  }
  return &*first;
}

std::string names_of(const std::vector<InterfaceAddress>& interfaces) {
  std::string names;
  for (const auto& one : interfaces) {
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", one.interface, one.address);
  }
  return names.empty() ? "none" : names;
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* entries = nullptr;
  if (::getifaddrs(&entries) != 0) throw system_error("getifaddrs()");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(entries, &freeifaddrs);
  std::vector<InterfaceAddress> interfaces;
  for (const ifaddrs* entry = entries; entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_UP) == 0 || entry->ifa_addr == nullptr) continue;
    const std::string address = address_text(entry->ifa_addr);
    if (address.empty() || is_link_local(address)) continue;
    interfaces.push_back({entry->ifa_name, address, entry->ifa_addr->sa_family == AF_INET6,
                          (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return interfaces;
}

std::string choose_address(std::string_view wanted, const std::vector<InterfaceAddress>& interfaces,
                           bool prefer_v6) {
  const bool excludes = wanted.starts_with('^');
  const bool is_exact = wanted.starts_with('=');
  auto items = split(excludes || is_exact ? wanted.substr(1) : wanted, ',');
  std::erase(items, "");
  const auto begins_with_one = [&](const InterfaceAddress& one) {
    return std::any_of(items.begin(), items.end(),
                       [&](std::string_view item) { return one.interface.starts_with(item); });
  };
  if (excludes || items.empty()) {
    const auto* found = find(interfaces, prefer_v6, [&](const InterfaceAddress& one) {
      return !one.is_loopback && !begins_with_one(one);
    });
    if (found != nullptr) return found->address;
    if (items.empty()) return "127.0.0.1";
  }
  for (const std::string_view item : items) {
    if (excludes) break;
    const auto* found = find(interfaces, prefer_v6, [&](const InterfaceAddress& one) {
      return is_exact ? one.interface == item : one.interface.starts_with(item);
    });
    if (found != nullptr) return found->address;
  }
  fail(
      ErrorCode::kInvalid,
      "PACELINE_SOCKET_IFNAME={} matches no interface of this host; the interfaces that are up: {}",
      wanted, names_of(interfaces));
}

bool is_link_local(const std::string& address) {
  in6_addr v6{};
  const std::string plain = address.substr(0, address.find('%'));
  return inet_pton(AF_INET6, plain.c_str(), &v6) == 1 && IN6_IS_ADDR_LINKLOCAL(&v6);
}

}  // namespace paceline
