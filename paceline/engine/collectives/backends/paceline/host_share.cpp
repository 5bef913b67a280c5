#include "paceline/engine/collectives/backends/paceline/host_share.h"

#include "paceline/engine/transport/shared_memory.h"

namespace paceline {
HostShare::HostShare(Mesh& mesh, Deadline deadline)
    : mesh_(mesh),
      blocks_(mesh.shared_memory()->allocate(
          kRingOffset + MessageStreams::bytes_for(mesh.neighbours().size()),
          {Pages::kOwnPresent, kRingOffset}, deadline)),
      barrier_(mesh, *blocks_) {}

std::byte* HostShare::area(int rank) const {
  return blocks_->of(rank) + kControlBytes + (turn_ & 1) * kAreaBytes;
}

void HostShare::meet(const Fingerprint& operation, const WaitOptions& wait,
                     const std::function<void()>& while_waiting) {
  const bool is_first = operation.sequence != announced_;
  if (is_first) {
    announced_ = operation.sequence;
    barrier_.announce({operation, {}, {}});
  }
  barrier_.arrive_and_wait(operation, wait, while_waiting);
  if (!is_first) return;
  for (const int peer : mesh_.neighbours()) {
    const Fingerprint said = barrier_.announcement_of(peer).fingerprint;
    require_same(operation, said, mesh_.self(), mesh_.describe(peer), mesh_.name());
  }
}

}  // namespace paceline
