#pragma once

// What tests over UCX need to know.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <sys/statvfs.h>

#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/ucx/ucx.h"

namespace paceline::harness {

// UCX carries what goes between hosts, so each rank is declared to be on one of its own; as
// LinkOptions::host.
inline std::string own_host_over_ucx(TransportKind transport, int rank) {
  return transport == TransportKind::kUcx ? "h" + std::to_string(rank) : "";
}

// Where tests can run over UCX. The thread sanitizer takes what it does not see in a library for
// races.
inline bool can_use_ucx() {
#if defined(__SANITIZE_THREAD__)
  return false;
#else
  return ucx_info().available;
#endif
}

// Where they can run over its POSIX shared memory, of which it takes a lot.
inline bool can_use_ucx_posix() {
  struct statvfs room {};
  return can_use_ucx() && statvfs("/dev/shm", &room) == 0 &&
         room.f_bavail * room.f_frsize >= std::uint64_t{512} << 20;
}

// For tests of every leaf: `others`, and UCX where they can run over it.
inline std::vector<TransportKind> and_ucx(std::vector<TransportKind> others) {
  if (can_use_ucx()) others.push_back(TransportKind::kUcx);
  return others;
}

// While it lives, UCX may use these of its transports alone ("tcp", "posix,cma"). Requires: no
// other thread runs.
class UcxTransports {
 public:
  explicit UcxTransports(const std::string& names) { setenv("UCX_TLS", names.c_str(), 1); }
  ~UcxTransports() { unsetenv("UCX_TLS"); }
  UcxTransports(const UcxTransports&) = delete;
  UcxTransports& operator=(const UcxTransports&) = delete;
};

}  // namespace paceline::harness
