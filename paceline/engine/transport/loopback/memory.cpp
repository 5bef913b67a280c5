#include "paceline/engine/transport/loopback/memory.h"

#include <cerrno>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/transport/mapping.h"
#include "paceline/engine/transport/memory_exchange.h"

namespace paceline {
namespace {

using Block = std::shared_ptr<Mapping>;  // owners: every rank that maps the block

// What the ranks of this process lend each other. A number travels, not an address, so that nothing
// that comes over a socket is ever taken for a pointer, and nothing is lost with a rank that fails.
class Lendings {
 public:
  std::uint64_t lend(Block block) {
    const std::lock_guard lock(mutex_);
    blocks_.emplace(++last_, std::move(block));
    return last_;
  }
  // Null for a number that is not lent.
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

// The ranks of a process have nothing else in common. Kept until the process ends.
Lendings& lendings() {
  static auto* const instance = new Lendings;
  return *instance;
}

// A block that this rank lends while it is in scope.
class Loan {
 public:
  explicit Loan(Block block) : number_(block ? lendings().lend(std::move(block)) : 0) {}
  ~Loan() { lendings().end(number_); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  // 0: there is no block.
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

// Null when there is no memory.
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
