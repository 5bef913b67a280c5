#include "paceline/launcher/process/memory_binding.h"

#include <array>
#include <cerrno>
#include <climits>

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace paceline::launcher {
namespace {

constexpr int kBitsPerWord = sizeof(unsigned long) * CHAR_BIT;
constexpr int kMaxNodes = 1024;  // the kernel's own limit

using NodeMask = std::array<unsigned long, kMaxNodes / kBitsPerWord>;

bool set_policy(int mode, const NodeMask& mask) {
  return syscall(SYS_set_mempolicy, mode, mask.data(), kMaxNodes + 1) == 0;
}

}  // namespace

bool prefer_memory_of(const std::vector<int>& numa_nodes) {
  if (numa_nodes.empty()) return true;
  NodeMask mask{};
  for (const int node : numa_nodes) {
    if (node >= 0 && node < kMaxNodes) mask[node / kBitsPerWord] |= 1UL << node % kBitsPerWord;
  }
  if (set_policy(MPOL_PREFERRED_MANY, mask)) return true;
  // Before Linux 5.15 a preference is for one node only.
  return errno == EINVAL && numa_nodes.size() == 1 && set_policy(MPOL_PREFERRED, mask);
}

}  // namespace paceline::launcher
