#pragma once

// The symmetric memory that a rank has in a group and in all groups made of it, so that each of
// these groups finds what another one has allocated.
//
// Thread safety: every method may be called from any thread.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "paceline/engine/transport/shared_memory.h"

namespace paceline {

class SymmetricRegistry {
 public:
  struct Entry {
    std::int64_t number = 0;   // the same on every rank, and of no other allocation
    std::vector<int> members;  // whose blocks these are: their ranks in the world
    std::weak_ptr<SharedBlocks> blocks;
  };

  void add(Entry entry) {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [](const Entry& old) { return old.blocks.expired(); });
    entries_.push_back(std::move(entry));
    version_.fetch_add(1, std::memory_order_release);
  }
  // Another one after every add().
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }
  std::vector<Entry> entries() const {
    const std::lock_guard lock(mutex_);
    return entries_;
  }

 private:
  mutable std::mutex mutex_;  // guards entries_
  std::vector<Entry> entries_;
  std::atomic<std::uint64_t> version_ = 0;
};

}  // namespace paceline
