#include "paceline/engine/collectives/backends/paceline/group_share.h"

#include "paceline/engine/transport/shared_memory.h"

namespace paceline {

GroupShare::GroupShare(Mesh& mesh, Deadline deadline)
    : mesh_(mesh),
      blocks_(mesh.shared_memory()->allocate(
          kRingOffset + MessageStreams::bytes_for(mesh.neighbours().size()),
          {Pages::kPresent, kRingOffset}, deadline)),
      barrier_(mesh, *blocks_),
      announced_(static_cast<std::size_t>(mesh.world_size())) {}

void GroupShare::enter(const SharedOperation& operation, const Announcement& announcement) {
  barrier_.announce(announcement);
  meet(operation);
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (barrier_.agrees(peer)) continue;
    require_same(operation.fingerprint, barrier_.announcement_of(peer).fingerprint, mesh_.self(),
                 mesh_.describe(peer), mesh_.name());
  }
}

void GroupShare::enter_with_places(const SharedOperation& operation,
                                   const Announcement& announcement) {
  enter(operation, announcement);
  for (int peer = 0; peer < mesh_.world_size(); ++peer)
    announced_[static_cast<std::size_t>(peer)] = barrier_.announcement_of(peer);
}

}  // namespace paceline
