#pragma once

// The hosts of a job as users write them, and which of them are this machine. "a:4,b:4" after
// --hosts, or a hostfile, one host a line, in the forms of Open MPI, DeepSpeed and MPICH:
//
//   # comment
//   worker-0 slots=4 max_slots=8
//   me@worker-1 slots=4
//   [fe80::1]:4
//
// A name ends up on the command line of ssh, so the rules are strict: letters, digits, '.', '-' and
// '_', no '-' at the beginning (ssh would read an option), an IPv6 address in brackets. Any other
// word is an error with its line, never skipped.

#include <string>
#include <vector>

namespace paceline::launcher {

struct Host {
  std::string name;  // [user@]name as ssh takes it; an IPv6 address without brackets
  int slots = 0;     // ranks to start there; 0: not given
  bool operator==(const Host&) const = default;

  // Without "user@".
  std::string address() const { return name.substr(name.find('@') + 1); }
};

inline constexpr int kMaxHosts = 65536;
inline constexpr int kMaxSlots = 4096;

// "a:4,b". Error(kInvalid); `where` names the option in the message.
std::vector<Host> parse_host_list(const std::string& text, const std::string& where);

// The contents of a hostfile. Error(kInvalid): "PATH, line 3: ...".
std::vector<Host> parse_hostfile(const std::string& text, const std::string& path);

// The file at `path`. Error(kInvalid) when it cannot be read.
std::vector<Host> read_hostfile(const std::string& path);

// True for a name that ssh and the resolver take as a name, never as an option or anything else.
bool is_host_name(const std::string& name);

// True for loopback names, this machine's own name, and all names that resolve to an address of one
// of its interfaces.
bool is_this_machine(const std::string& host);

// The first address that `host` resolves to, as a number; empty when it does not resolve.
std::string numeric_address(const std::string& host);

// This machine's address on the way to `host`, as the kernel would choose it; empty when there is
// no way or the name does not resolve. Nothing is sent.
std::string own_address_towards(const std::string& host);

}  // namespace paceline::launcher
