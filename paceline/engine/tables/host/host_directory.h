#pragma once

// Finds the memory of a host's table. An entry in the job's store lists the processes that hold the
// memory open; another process opens it through /proc/PID/fd of any of them.
//
// Thread safety: every method may be called from any thread.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/store/store.h"
#include "paceline/engine/tables/host/table_memory.h"

namespace paceline::tables {

class HostDirectory {
 public:
  // For `table` on the host of this process.
  HostDirectory(std::shared_ptr<Store> store, std::string table);

  // Returns the memory of the table, and adds this process to its holders. Makes an empty table if
  // there is none, if no live process holds it open, or if it is still moving at the deadline.
  // Error(kInvalid) if the table is open with other options.
  MemoryPointer find_or_make(const Settings& settings, Deadline deadline) const;

  // Implements SharedRowsOptions::next_memory (shared_rows.h).
  MemoryPointer next(const TableMemory& closed, MemoryPointer successor) const;

 private:
  struct Holder {
    std::int32_t pid = 0, descriptor = 0;
    std::uint64_t start_ticks = 0;
  };
  struct Place {
    std::uint64_t epoch = 0, number = 0;
    std::vector<Holder> holders;
  };
  static std::string text_of(const Place& place);
  Place parse(const std::string& text) const;
  static Holder self(const TableMemory& memory);
  static MemoryPointer map(const Place& place);
  std::string read() const;
  void add_self(const TableMemory& memory) const;

  const std::shared_ptr<Store> store_;
  const std::string table_, key_;
};

}  // namespace paceline::tables
