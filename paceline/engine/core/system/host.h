#pragma once

// The identity of this host and of this process, and the addresses at which other hosts reach it.
//
// Thread safety: any thread may call the functions and the const methods.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace paceline {

// A token made of the kernel's boot id and the network namespace. It is equal for two processes
// exactly when abstract Unix sockets can connect them.
std::string host_token();
// A token that differs between any two processes of a host, even a parent and its forked child.
std::string process_token();
std::string host_name();
// The kernel's boot id, which changes with every start of the machine.
std::string boot_id();
// The PID namespace. Two processes in the same namespace understand each other's process numbers.
std::string pid_namespace();

struct ProcessStatus {
  char state = '?';               // as in /proc/PID/stat: R, S, T (stopped), Z (ended), ...
  std::uint64_t start_ticks = 0;  // clock ticks after boot; with the PID it identifies a process
};
// Returns nullopt when there is no such process.
std::optional<ProcessStatus> process_status(pid_t pid);
// A property of the first processor in /proc/cpuinfo ("model name", "flags", ...); "" if it is not
// listed.
std::string cpu_property(std::string_view name);
// The numbers of the processors that `thread` (0: the calling thread) may run on, ascending. Empty
// if the kernel does not report them.
std::vector<int> allowed_cpus(pid_t thread = 0);
// Restricts this thread to these processors. Returns false and sets errno if the kernel refuses.
// Requires: at least one processor.
bool bind_to_cpus(const std::vector<int>& cpus);

// Remembers which process made an object. A forked child has a copy of the object but none of the
// parent's threads, and must not use the connections that it inherited from the parent.
//
// is_this() costs one load: the kernel wipes a certain page in every child (MADV_WIPEONFORK), and a
// process that finds the page wiped writes its own PID there. Linux before 4.14 cannot wipe pages;
// is_this() then costs a system call each time.
class OwnerProcess {
 public:
  OwnerProcess() : pid_(current()) {}
  bool is_this() const { return current() == pid_; }
  // The PID, for messages.
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

// The addresses of the interfaces that are up, in the kernel's order, without IPv6 link-local ones.
// May throw Error(kSystem).
std::vector<InterfaceAddress> interface_addresses();

// The address at which this host takes part in a job that spans hosts. `wanted` has the syntax of
// NCCL_SOCKET_IFNAME: "eth,ib" lists prefixes of names, the first prefix that matches an interface
// wins; "=eth0,eth1" lists whole names; "^docker,virbr" lists prefixes to exclude. Empty selects
// the first interface that is not loopback, or 127.0.0.1 when there is none. If the interface has
// an address of the preferred family, that address is chosen. Throws Error(kInvalid), which names
// the interfaces that are up, when none matches.
std::string choose_address(std::string_view wanted, const std::vector<InterfaceAddress>& interfaces,
                           bool prefer_v6);

// Whether `address` is link-local (fe80::...), so that other hosts cannot use it.
bool is_link_local(const std::string& address);

}  // namespace paceline
