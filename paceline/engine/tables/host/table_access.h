#pragma once

// One worker's access to the memory of a table, and the locks in that memory.
//
// A lock is a word: 0, or the token of its owner, whose lowest bit is set while other workers sleep
// on the word. A worker may die or freeze while it owns a lock, so a worker that waits for a lock
// checks the owner from time to time:
//
//  1. The owner's process has ended: its unfinished change is completed or dropped (row_store.h),
//     its locks are released, and its slot is free again.
//  2. The owner is frozen, and the directory of workers lists it as lost: it is *revoked*, so that
//     it cannot change anything any more, and its locks are released.
//  3. As 2, but the owner was frozen in the middle of writing a row. It will continue writing when
//     it thaws, and nothing can stop it. So the table moves to new memory (table_workers.h).
//
// Lock order: `applying` or the lock of an ApplyPart, the lock of one slot (only take_cut() takes
// all of them), the allocator's lock, `repairing`.
//
// Thread safety: none; each thread has a TableAccess of its own, or the caller holds a mutex.

#include <cstdint>
#include <functional>
#include <string>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/tables/host/table_memory.h"

namespace paceline::tables {

// Thrown when the memory is closed: the table continues in other memory.
struct TableMoved {};
// Thrown when case 3 above makes it necessary to move the table.
struct MustTakeOver {};

// Whether the directory of workers (rpc/directory.h) lists this worker as lost or as having left.
using IsLost = std::function<bool(const std::string& worker)>;

struct TableAccess {
  MemoryPointer memory;
  std::uint32_t index = 0;  // of this worker's slot
  std::uint32_t token = 0;
  std::string table;  // its name, for messages
  IsLost is_lost;
  const char* operation = "push";  // for messages
  Deadline deadline = Deadline::never();

  WorkerSlot& self() const { return memory->worker(index); }
  TableHeader& header() const { return memory->header(); }
  std::string self_name() const { return self().name.data(); }
  // Throws TableMoved if the memory is closed, and Error(kPeerLost) if this worker was revoked.
  void require_open() const;
  bool is_closed() const;
  [[noreturn]] void was_revoked() const;
};

constexpr std::uint32_t kWaiters = 1;
constexpr std::uint32_t token_of(std::uint32_t index, std::uint32_t generation) {
  return (generation % 0xff'ffff + 1) << 8 | index << 1;
}
constexpr std::uint32_t index_of_token(std::uint32_t token) { return token >> 1 & 127; }

// Owns a lock until the end of the scope. The constructor waits; it throws the errors of
// require_open(), MustTakeOver, and, at the deadline, Error(kTimeout), which names the owner.
class LockGuard {
 public:
  LockGuard(const TableAccess& access, Word& lock);
  ~LockGuard();
  LockGuard(const LockGuard&) = delete;
  LockGuard& operator=(const LockGuard&) = delete;

 private:
  Word& lock_;
  const std::uint32_t token_;
};

// Releases a lock if it has this owner, and wakes the workers that wait for it.
void release(Word& lock, std::uint32_t token);

// Waits until the owner of a lock has released it, but does not take the lock: for a reader that
// found a row in the middle of a change. Throws as LockGuard.
void wait_for_owner(const TableAccess& access, Word& lock);

}  // namespace paceline::tables
