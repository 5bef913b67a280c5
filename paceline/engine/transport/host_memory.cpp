#include "paceline/engine/transport/host_memory.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/timing.h"
#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/shared_memory.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {

namespace {

using namespace std::chrono_literals;

struct Offer {
  static constexpr std::uint64_t kMagic = 0x4f4c5001;  // "\x01PLO": version 1

  std::uint64_t magic = kMagic;
  std::uint64_t bytes = 0;
  std::uint64_t value = 0;
};
static_assert(sizeof(Offer) == 24);

bool is_end(int error) { return error == EPIPE || error == ECONNRESET; }

// Sends an offer with a descriptor. Returns how many of its bytes were sent, or 0 with `error` if
// the kernel refuses to pass the descriptor (too many may be in flight).
std::size_t send_descriptor(int socket, const Offer& offer, int fd, Deadline deadline, int& error) {
  const auto bytes = std::as_bytes(std::span(&offer, 1));
  ssize_t sent = 0;
  do {
    sent = send_with_descriptors(socket, bytes, std::span(&fd, 1));
  } while (sent < 0 && errno == EAGAIN && await(socket, POLLOUT, deadline));
  if (sent < 0 && !is_end(errno)) error = errno;
  return static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
}

// Sends the whole offer in any case, because the peer waits for it. Returns 0, or the errno with
// which the kernel refused the descriptor.
int send_offer(Mesh& mesh, int peer, Offer offer, int fd, Deadline deadline) {
  int error = 0;
  std::size_t sent = 0;
  if (fd >= 0) {
    const int socket = mesh.wire().socket(peer, Channel::kData);
    sent = send_descriptor(socket, offer, fd, deadline, error);
    if (error != 0) offer.value = 0;
  }
  const auto rest = std::as_bytes(std::span(&offer, 1)).subspan(sent);
  if (!send_whole(mesh.wire(), peer, Channel::kData, rest, deadline)) {
    mesh.throw_lost(peer, is_end(errno) ? "is gone: it closed the connection"
                                        : std::string("is gone: ") + std::strerror(errno));
  }
  return error;
}

struct Incoming {
  Offer offer;
  std::size_t got = 0;  // bytes of the offer
  Fd fd;                // the descriptor that came with it, if any
};

// Returns true once the whole offer has arrived.
bool receive_offer(Mesh& mesh, int peer, Incoming& incoming) {
  const int socket = mesh.wire().socket(peer, Channel::kData);
  const auto rest = std::as_writable_bytes(std::span(&incoming.offer, 1)).subspan(incoming.got);
  const ssize_t got = socket >= 0
                          ? receive_with_descriptors(socket, rest, std::span(&incoming.fd, 1)).bytes
                          : mesh.receive(peer, Channel::kData, rest);
  if (got < 0 && would_block(errno)) return false;
  if (got <= 0) {
    mesh.throw_lost(peer, got == 0 || is_end(errno)
                              ? "is gone: it closed the connection"
                              : std::string("is gone: ") + std::strerror(errno));
  }
  incoming.got += static_cast<std::size_t>(got);
  constexpr std::uint64_t kMagic = Offer::kMagic;
  if (std::memcmp(&incoming.offer, &kMagic, std::min(incoming.got, sizeof kMagic)) != 0) {
    fail(ErrorCode::kCorrupt, "{}: {} sent bytes that are not an offer of shared memory",
         mesh.self(), mesh.describe(peer));
  }
  return incoming.got == sizeof(Offer);
}

Incoming wait_for_offer(Mesh& mesh, int peer, Deadline deadline, std::size_t bytes) {
  const auto begin = Deadline::Clock::now();
  Incoming incoming;
  for (Vigil vigil; !receive_offer(mesh, peer, incoming);) {
    Interest interest{peer, Channel::kData, POLLIN};
    mesh.wire().wait({&interest, 1}, 10ms);
    WaitCheck::run();
    mesh.throw_if_failed();
    if (const Awaited awaited{peer}; mesh.is_asked()) mesh.answer({&awaited, 1});
    if (vigil.sees_passed(deadline)) {
      fail(ErrorCode::kTimeout,
           "{}: allocating {} shared bytes in group {} timed out after {:.1f} s: {} has not "
           "allocated its block; {}",
           mesh.self(), bytes, mesh.name(), seconds_since(begin), mesh.describe(peer),
           kAdviceForLate);
    }
  }
  return incoming;
}

// The text of a cause, with advice. Only the rank itself knows its limit of descriptors.
std::string cause_and_remedy(int cause, bool is_own) {
  if (cause == EMFILE && is_own) return describe_errno(cause);
  return fmt::format(
      "{}; {}", std::generic_category().message(cause),
      cause == EMFILE ? "raise ulimit -n on that rank" : "free memory or choose --transport tcp");
}

}  // namespace

int exchange_with_peers(Mesh& mesh, std::size_t bytes, Deadline deadline,
                        const std::function<MemoryHandle(int peer)>& make,
                        const std::function<void(int peer, MemoryHandle handle)>& take) {
  int error = 0;
  for (const int peer : mesh.neighbours()) {
    if (peer == mesh.rank()) continue;
    const auto handle = make(peer);
    const Offer offer{.bytes = bytes, .value = handle.value};
    const int refused = send_offer(mesh, peer, offer, handle.fd, deadline);
    if (error == 0) error = refused;
  }
  for (const int peer : mesh.neighbours()) {
    if (peer == mesh.rank()) continue;
    Incoming incoming = wait_for_offer(mesh, peer, deadline, bytes);
    check(incoming.offer.bytes == bytes, "{}: asked for {} shared bytes, but {} asked for {}",
          mesh.self(), bytes, mesh.describe(peer), incoming.offer.bytes);
    take(peer, {incoming.offer.value, incoming.fd.release()});
  }
  return error;
}

void require_all_mapped(Mesh& mesh, std::size_t bytes, Deadline deadline, int error) {
  std::vector<int> errors(static_cast<std::size_t>(mesh.world_size()));
  errors[static_cast<std::size_t>(mesh.rank())] = error;
  exchange_with_peers(
      mesh, bytes, deadline,
      [&](int) {
        return MemoryHandle{static_cast<std::uint64_t>(error), -1};
      },
      [&](int peer, MemoryHandle verdict) {
        const Fd unwanted(verdict.fd);
        errors[static_cast<std::size_t>(peer)] = static_cast<int>(verdict.value);
      });
  for (const int rank : mesh.neighbours()) {
    const int cause = errors[static_cast<std::size_t>(rank)];
    if (cause == 0) continue;
    fail(ErrorCode::kSystem,
         "{}: {} could not get its part of {} bytes of memory shared by {} ranks: {}", mesh.self(),
         mesh.describe(rank), bytes, mesh.neighbours().size(),
         cause_and_remedy(cause, rank == mesh.rank()));
  }
}

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

// Maps this rank's file. Unless `pages` is kOnTouch, allocates all pages of the file now, because
// touching a page for which there is no memory raises SIGBUS. The mapping allocates its pages
// first, because it may get huge pages; reserve_file() allocates the others. Returns an empty
// mapping and sets errno on failure.
Mapping map_own_file(const Fd& file, std::size_t bytes, Pages pages) {
  Mapping mapping = Mapping::of_file(file, bytes, pages);
  if (!mapping || pages == Pages::kOnTouch || reserve_file(file.get(), bytes)) return mapping;
  return {};
}

// Maps a peer's file. Returns an empty mapping and sets errno unless the file has the required size
// and is sealed.
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
  int error = 0;  // this rank's first error
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
          error = EMFILE;  // the descriptor was sent, but this process cannot hold any more
        }
      });
  require_all_mapped(mesh_, bytes, deadline, error != 0 ? error : refused);
  for (const int rank : mesh_.neighbours()) {
    const Mapping& mapping = mappings[static_cast<std::size_t>(rank)];
    if (mapping) continue;
    fail(
        ErrorCode::kCorrupt,
        "{}: sharing {} bytes of memory in group {}: {} offered no memory; start the same build of "
        "Paceline on all ranks, or choose --transport tcp",
        mesh_.self(), bytes, mesh_.name(), mesh_.describe(rank));
  }
  return std::make_shared<ShmBlocks>(bytes, std::move(mappings));
}

namespace {

using Block = std::shared_ptr<Mapping>;  // owners: every rank that maps the block

// The blocks that the ranks of this process lend each other. They pass numbers, not addresses, so
// that no bytes from a socket are ever taken for a pointer, and a rank that fails leaves nothing
// behind.
class Lendings {
 public:
  std::uint64_t lend(Block block) {
    const std::lock_guard lock(mutex_);
    blocks_.emplace(++last_, std::move(block));
    return last_;
  }
  // The block with this number; null if the number is not lent.
  Block find(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(number);
    return found == blocks_.end() ? nullptr : found->second;
  }
  void end(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    blocks_.erase(number);
  }

 private:
  std::mutex mutex_;  // guards everything below
  std::unordered_map<std::uint64_t, Block> blocks_;
  std::uint64_t last_ = 0;
};

// The lent blocks are global, because the ranks of a process share nothing else. The object is
// never destroyed.
Lendings& lendings() {
  static auto* const instance = new Lendings;
  return *instance;
}

// Lends a block of this rank until the object goes out of scope.
class Loan {
 public:
  explicit Loan(Block block) : number_(block ? lendings().lend(std::move(block)) : 0) {}
  ~Loan() { lendings().end(number_); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  // 0 if there is no block.
  std::uint64_t number() const { return number_; }

 private:
  const std::uint64_t number_;
};

class LoopbackBlocks : public SharedBlocks {
 public:
  LoopbackBlocks(std::size_t bytes, std::vector<Block> blocks) : blocks_(std::move(blocks)) {
    bytes_ = bytes;
    for (const auto& block : blocks_) bases_.push_back(block ? block->data() : nullptr);
  }

 private:
  const std::vector<Block> blocks_;
};

// Allocates a block; null if there is no memory.
Block make_block(std::size_t bytes, Pages pages) {
  try {
    return std::make_shared<Mapping>(Mapping::anonymous(bytes, pages));
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace

std::shared_ptr<SharedBlocks> LoopbackMemory::allocate(std::size_t bytes, Pages pages,
                                                       Deadline deadline) {
  const Block own = make_block(bytes, pages);
  const Loan loan(own);
  std::vector<Block> blocks(static_cast<std::size_t>(mesh_.world_size()));
  blocks[static_cast<std::size_t>(mesh_.rank())] = own;
  exchange_with_peers(
      mesh_, bytes, deadline,
      [&](int) {
        return MemoryHandle{loan.number(), -1};
      },
      [&](int peer, MemoryHandle handle) {
        const Fd unwanted(handle.fd);
        blocks[static_cast<std::size_t>(peer)] = lendings().find(handle.value);
      });
  bool complete = true;
  for (const int rank : mesh_.neighbours()) {
    const auto& block = blocks[static_cast<std::size_t>(rank)];
    complete &= block != nullptr && block->bytes() == bytes;
  }
  require_all_mapped(mesh_, bytes, deadline, complete ? 0 : ENOMEM);
  return std::make_shared<LoopbackBlocks>(bytes, std::move(blocks));
}

}  // namespace paceline
