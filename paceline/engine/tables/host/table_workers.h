#pragma once

// The workers of a host that have a table open: how they join and leave, and how the other workers
// handle a worker that dies or freezes. Each worker has a slot in the table's memory, with its
// process, its clock and its session.

#include <cstdint>
#include <optional>
#include <string>

#include "paceline/engine/rpc/workers.h"
#include "paceline/engine/tables/host/table_access.h"

namespace paceline::tables {

// Implements IsLost for the workers of a job. This process's list of workers may be a second old,
// so a worker listed as gone is looked up in the store, because it may have joined again.
bool has_gone(rpc::Workers& workers, const std::string& worker);

enum class WorkerState {
  kPresent,
  kDead,      // its process has ended
  kFrozen,    // its process lives, but the directory of workers lists it as lost
  kReplaced,  // it left or was evicted before
};

WorkerPhase phase_of(const WorkerSlot& slot);
WorkerState state_of(const TableMemory& memory, std::uint32_t token, const IsLost& is_lost);
std::string name_of(const TableMemory& memory, std::uint32_t token);
bool is_present(const WorkerSlot& slot);

struct SessionWish {
  std::optional<std::uint64_t> known;  // of an earlier worker, whose pushes may have to be repeated
  std::optional<std::uint64_t> number;  // of a new session; default: random
};

// Takes a slot for this process and fills in `access`. The worker's clock starts at the fastest
// worker's clock, less the bound of a bounded table. Throws Error(kInvalid) if no slot is free, or
// if the session is unknown or in use. Other errors as LockGuard.
void join_table(TableAccess& access, const std::string& name, const SessionWish& session);
// Gives the slot back: other workers do not wait for this worker any more. Errors as LockGuard.
void leave_table(const TableAccess& access);

// Removes a worker that is dead or frozen. A dead worker's committed change is completed; a change
// that was not committed is dropped. Throws MustTakeOver for a frozen worker with a committed
// change.
void evict(const TableAccess& access, std::uint32_t index, WorkerState state);

// The smallest clock of the present workers; nullopt if there are none.
std::optional<std::uint64_t> smallest_clock(const TableMemory& memory);

// Wakes the workers that wait for a clock, because a clock or the set of workers has changed.
void announce(const TableMemory& memory);

// Moves a table to new memory, because a frozen worker stopped in the middle of writing a row: it
// goes on writing when it thaws, and nothing can stop it. The old memory is closed first, so that
// all other workers stop; then it is copied, and the frozen worker's change, which is committed, is
// completed in the copy. No worker reads what the frozen worker writes after that.
//
// Several workers may take a table over at the same time: they do not change the old rows, and one
// of the copies is chosen (SharedRowsOptions::next_memory).
//
// Closes the memory and returns a copy of it, with the next epoch, without the workers that are
// dead or frozen. Throws Error(kSystem) if there is no memory for a copy, and Error(kTimeout) if
// a worker that lives does not end its change.
MemoryPointer take_over(const TableAccess& access);

}  // namespace paceline::tables
