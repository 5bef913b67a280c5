#pragma once

// The hosts of a job as users write them, and which of them are this machine. Users write "a:4,b:4"
// after --hosts, or a hostfile with one host on each line, in the format of Open MPI, DeepSpeed or
// MPICH:
//
//   # comment
//   worker-0 slots=4 max_slots=8
//   me@worker-1 slots=4
//   [fe80::1]:4
//
// A name is passed to ssh on its command line, so the rules are strict: letters, digits, '.', '-'
// and '_', no '-' at the beginning (ssh would read an option), an IPv6 address in brackets. Any
// other word is an error that names the line; no word is skipped.

#include <string>
#include <vector>

namespace paceline::launcher {

struct Host {
  std::string name;  // [user@]name for ssh; an IPv6 address without brackets
  int slots = 0;     // ranks to start there; 0: not given
  bool operator==(const Host&) const = default;

  // The name without "user@".
  std::string address() const { return name.substr(name.find('@') + 1); }
};

inline constexpr int kMaxHosts = 65536;
inline constexpr int kMaxSlots = 4096;

// Reads a list such as "a:4,b". Error(kInvalid); `where` names the option in the message.
std::vector<Host> parse_host_list(const std::string& text, const std::string& where);

// Reads the contents of a hostfile. Error(kInvalid): "PATH, line 3: ...".
std::vector<Host> parse_hostfile(const std::string& text, const std::string& path);

// Reads the hostfile at `path`. Error(kInvalid) when it cannot be read or parsed.
std::vector<Host> read_hostfile(const std::string& path);

// Whether ssh and the resolver always take `name` as the name of a host, and never as an option or
// anything else.
bool is_host_name(const std::string& name);

// True for loopback names, this machine's own name, and all names that resolve to an address of one
// of this machine's interfaces.
bool is_this_machine(const std::string& host);

// The first address that `host` resolves to, as a number; empty when it does not resolve.
std::string numeric_address(const std::string& host);

// This machine's address on the route to `host`, as the kernel would choose it; empty when there is
// no route or the name does not resolve. Nothing is sent.
std::string own_address_towards(const std::string& host);

}  // namespace paceline::launcher
