#include "paceline/engine/transport/shm/memory.h"

#include <cerrno>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/io.h"
#include "paceline/engine/transport/mapping.h"
#include "paceline/engine/transport/memory_exchange.h"
#include "paceline/engine/transport/sealed_file.h"

namespace paceline {
namespace {

class ShmBlocks : public SharedBlocks {
 public:
  ShmBlocks(std::size_t bytes, std::vector<Mapping> mappings) : mappings_(std::move(mappings)) {
    bytes_ = bytes;
    for (const auto& mapping : mappings_) bases_.push_back(mapping.data());
  }

 private:
  const std::vector<Mapping> mappings_;
};

// Takes the file's pages now, for all ranks, unless they come on touch: touching a page for which
// there is no memory is SIGBUS. The mapping takes them first, because it may have huge pages.
// Empty, with errno set, when that fails.
Mapping map_own_file(const Fd& file, std::size_t bytes, Pages pages) {
  Mapping mapping = Mapping::of_file(file, bytes, pages);
  if (!mapping || pages == Pages::kOnTouch || reserve_file(file.get(), bytes)) return mapping;
  return {};
}

// A peer's file: empty, with errno set, unless it is as large as it must be and stays so.
Mapping map_file_of_peer(const Fd& file, std::size_t bytes, Pages pages) {
  if (!is_sealed_file(file, bytes)) {
    errno = EINVAL;
    return {};
  }
  return Mapping::of_file(file, bytes, pages);
}

}  // namespace

std::shared_ptr<SharedBlocks> ShmMemory::allocate(std::size_t bytes, Pages pages,
                                                  Deadline deadline) {
  const Pages pages_of_peers = pages == Pages::kOwnPresent ? Pages::kOnTouch : pages;
  std::vector<Mapping> mappings(static_cast<std::size_t>(mesh_.world_size()));
  int error = 0;  // the first of this rank
  const auto keep = [&](int rank, Mapping mapping) {
    if (!mapping && error == 0) error = errno;
    mappings[static_cast<std::size_t>(rank)] = std::move(mapping);
  };
  const Fd own = make_sealed_file(bytes);
  keep(mesh_.rank(), own ? map_own_file(own, bytes, pages) : Mapping());
  const int refused = exchange_with_peers(
      mesh_, bytes, deadline,
      [&](int) {
        return MemoryHandle{static_cast<std::uint64_t>(own ? 1 : 0), own.get()};
      },
      [&](int peer, MemoryHandle handle) {
        const Fd file(handle.fd);
        if (file) {
          keep(peer, map_file_of_peer(file, bytes, pages_of_peers));
        } else if (handle.value != 0 && error == 0) {
          error = EMFILE;  // it was sent, but this process can hold no more descriptors
        }
      });
  require_all_mapped(mesh_, bytes, deadline, error != 0 ? error : refused);
  for (const int rank : mesh_.neighbours()) {
    const Mapping& mapping = mappings[static_cast<std::size_t>(rank)];
    if (mapping) continue;
    fail(ErrorCode::kCorrupt,
         "{}: sharing {} bytes of memory in group {}: {} offered none; start the same build of "
         "Paceline on all ranks, or choose --transport tcp",
         mesh_.self(), bytes, mesh_.name(), mesh_.describe(rank));
  }
  return std::make_shared<ShmBlocks>(bytes, std::move(mappings));
}

}  // namespace paceline
