#pragma once

// Memory that every rank of a group allocated with the same size and that, on one host, all of them
// map. Collectives on it read the peers' bytes in place, with no copy in or out.
//
// A value that shares ownership: the memory lives as long as any copy, also beyond its group.

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace paceline {

class SymmetricBuffer {
 public:
  SymmetricBuffer() = default;
  // The blocks of all ranks as this process, `rank`, sees them (of()); `owner` keeps them alive.
  // `has_failed` becomes true when the group fails.
  SymmetricBuffer(std::vector<std::byte*> blocks, int rank, std::size_t bytes,
                  std::shared_ptr<void> owner, std::shared_ptr<const std::atomic<bool>> has_failed)
      : blocks_(std::move(blocks)),
        data_(of(rank)),
        bytes_(bytes),
        owner_(std::move(owner)),
        has_failed_(std::move(has_failed)) {}

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // Where this process sees the block of `rank`; null where it does not, because the ranks of the
  // group share no memory. A writer synchronises with its owner by collectives.
  std::byte* of(int rank) const { return blocks_[static_cast<std::size_t>(rank)]; }
  // Zeroed, page-aligned elements of type T.
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }
  const std::shared_ptr<void>& owner() const { return owner_; }
  // False once the group has failed, in whatever it did: a rank that is late may still write
  // results of an operation, so that the memory is good for nothing else. Any thread.
  bool is_live() const { return has_failed_ != nullptr && !*has_failed_; }

 private:
  std::vector<std::byte*> blocks_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::shared_ptr<void> owner_;
  std::shared_ptr<const std::atomic<bool>> has_failed_;
};

}  // namespace paceline
