#pragma once

// Where the memory of a host's table is: an entry in the job's store, with the processes that hold
// the memory open. Any of them can pass it on, by /proc/PID/fd.
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
  // The entry of a table of the host of this process.
  HostDirectory(std::shared_ptr<Store> store, std::string table);

  // Returns the memory of the table; makes it if there is none, or if no worker has it open any
  // more. Adds this process to those that hold it.
  MemoryPointer find_or_make(const Settings& settings, Deadline deadline) const;

  // SharedRowsOptions::next_memory.
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
