#pragma once

// The identity of this host and this process, and the addresses under which others reach the host.
//
// Thread safety: free functions without state; const methods.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace paceline {

// Equal for two processes exactly when Unix sockets connect them: the kernel's boot id and the
// network namespace.
std::string host_token();
// Different for any two processes, also for a child after fork().
std::string process_token();
std::string host_name();
// Different after every start of the machine.
std::string boot_id();
// Two processes in the same one understand each other's process numbers.
std::string pid_namespace();

struct ProcessStatus {
  char state = '?';               // as /proc/PID/stat says: R, S, T (stopped), Z (ended), ...
  std::uint64_t start_ticks = 0;  // clock ticks after boot; with the number it names a process
};
// Empty when there is no such process.
std::optional<ProcessStatus> process_status(pid_t pid);
// What /proc/cpuinfo says of the first processor under "model name", "flags", ...; "" if nothing.
std::string cpu_property(std::string_view name);
// The numbers of the processors that a thread may run on, ascending; 0: this thread. Empty where
// the kernel does not say.
std::vector<int> allowed_cpus(pid_t thread = 0);
// Lets this thread run on these processors only. False, with errno, where the kernel refuses it.
// Requires: at least one.
bool bind_to_cpus(const std::vector<int>& cpus);

// The process that made an object. A child made by fork() has a copy of the object but none of its
// threads, and must not speak for its parent over descriptors that both hold.
//
// is_this() costs a load: the kernel wipes one page of every child, and a process that finds it
// wiped marks it as its own. (Linux before 4.14, which cannot, costs a system call each time.)
class OwnerProcess {
 public:
  OwnerProcess() : pid_(current()) {}
  bool is_this() const { return current() == pid_; }
  // For messages.
  pid_t pid() const { return pid_; }

 private:
  static pid_t current();

  pid_t pid_;
};

struct InterfaceAddress {
  std::string interface;  // "eth0"
  std::string address;    // numeric
  bool is_v6 = false;
  bool is_loopback = false;
};

// The addresses of the interfaces that are up, in the kernel's order, without addresses that are
// valid on one link only. Error(kSystem).
std::vector<InterfaceAddress> interface_addresses();

// The address under which this host takes part in a job that spans hosts. `wanted` is as
// NCCL_SOCKET_IFNAME has it: "eth,ib" are beginnings of names, the first that fits an interface
// counts; "=eth0,eth1" are whole names; "^docker,virbr" are beginnings of what is not to be taken.
// Empty: the first interface that is not loopback, 127.0.0.1 when there is none. Of an interface's
// addresses one of the preferred family is taken, if it has one. Error(kInvalid) names the
// interfaces that there are.
std::string choose_address(std::string_view wanted, const std::vector<InterfaceAddress>& there,
                           bool prefer_v6);

// Whether `address` is valid on one link only (fe80::...), so that it means nothing to other hosts.
bool is_link_local(const std::string& address);

}  // namespace paceline
