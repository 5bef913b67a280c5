#pragma once

// Helpers for tests over UCX.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <sys/statvfs.h>

#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/ucx/ucx.h"

namespace paceline::harness {

// UCX carries data between hosts, so each rank is declared to be on a host of its own. The result
// is a value for LinkOptions::host.
inline std::string own_host_over_ucx(TransportKind transport, int rank) {
  return transport == TransportKind::kUcx ? "h" + std::to_string(rank) : "";
}

// Whether tests can run over UCX. They cannot with the thread sanitizer, which reports races in
// library code that it does not see.
inline bool can_use_ucx() {
#if defined(__SANITIZE_THREAD__)
  return false;
#else
  return ucx_info().available;
#endif
}

// Whether tests can run over UCX's POSIX shared memory, which needs a lot of space in /dev/shm.
inline bool can_use_ucx_posix() {
  struct statvfs room {};
  return can_use_ucx() && statvfs("/dev/shm", &room) == 0 &&
         room.f_bavail * room.f_frsize >= std::uint64_t{512} << 20;
}

// For tests that run over several transports: `others`, and UCX if tests can run over it.
inline std::vector<TransportKind> and_ucx(std::vector<TransportKind> others) {
  if (can_use_ucx()) others.push_back(TransportKind::kUcx);
  return others;
}

// While this object exists, UCX may use only these of its own transports ("tcp", "posix,cma").
// Requires: no other thread runs.
class UcxTransports {
 public:
  explicit UcxTransports(const std::string& names) { setenv("UCX_TLS", names.c_str(), 1); }
  ~UcxTransports() { unsetenv("UCX_TLS"); }
  UcxTransports(const UcxTransports&) = delete;
  UcxTransports& operator=(const UcxTransports&) = delete;
};

}  // namespace paceline::harness
