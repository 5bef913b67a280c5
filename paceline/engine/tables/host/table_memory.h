#pragma once

// A table's memory in this process, and the directory by which the processes of a host find it.
//
// The memory is a mapped, sealed file without a name. Every worker of the host maps the same file,
// and any of them can pass it on. An entry in the job's store lists the processes and descriptors
// that hold the memory open; another process opens it as /proc/PID/fd/DESCRIPTOR of one of them.
//
// Thread safety: const methods may be called from any thread. They return atomics, or data that are
// protected as table_layout.h says.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/store/store.h"
#include "paceline/engine/tables/host/row_update.h"
#include "paceline/engine/tables/host/table_layout.h"
#include "paceline/engine/transport/shared_memory.h"

namespace paceline::tables {

class TableMemory {
 public:
  // Makes an empty table. Throws Error(kSystem) with the size if the system has no memory for it.
  static std::shared_ptr<TableMemory> make(const Settings& settings, std::uint64_t epoch);
  // Maps another process's table. Throws Error(kCorrupt) for other files; errors of the mapping.
  static std::shared_ptr<TableMemory> of_file(Fd file);

  int descriptor() const { return file_.get(); }
  const TableLayout& layout() const { return layout_; }
  const Settings& settings() const { return header().settings; }
  TableHeader& header() const { return *at<TableHeader>(0); }
  WorkerSlot& worker(std::uint32_t i) const {
    return *at<WorkerSlot>(layout_.workers + i * sizeof(WorkerSlot));
  }
  SessionRecord& session(std::uint32_t i) const {
    return *at<SessionRecord>(layout_.sessions + i * sizeof(SessionRecord));
  }
  SlotState& slot(std::uint32_t i) const {
    return *at<SlotState>(layout_.slots + i * sizeof(SlotState));
  }
  Journal& journal(std::uint32_t worker) const {
    return *at<Journal>(layout_.journals + worker * layout_.journal_bytes);
  }
  float* journal_image(std::uint32_t worker) const {
    return at<float>(layout_.journals + worker * layout_.journal_bytes + sizeof(Journal));
  }
  // The head of the chain of an id.
  Word& bucket(Id id) const {
    const std::uint64_t hash = mix(static_cast<std::uint64_t>(id));  // its upper 10 bits: the slot
    const std::size_t in_slot = (hash >> 20) & (layout_.buckets_per_slot - 1);
    return bucket_number((hash >> 54) * layout_.buckets_per_slot + in_slot);
  }
  Word& bucket_number(std::size_t i) const { return at<Word>(layout_.buckets)[i]; }
  std::size_t num_buckets() const { return std::size_t{kNumSlots} * layout_.buckets_per_slot; }
  // Requires: 1 <= number <= TableLayout::max_entries, or max_data for data().
  Entry& entry(std::uint32_t number) const {
    return *at<Entry>(layout_.entries + std::size_t{number - 1} * layout_.entry_stride);
  }
  LongWord* data(std::uint32_t number) const {
    return at<LongWord>(layout_.data + std::size_t{number - 1} * layout_.data_stride);
  }
  Id* staged_ids(std::uint32_t worker) const {
    return at<Id>(layout_.stages + worker * layout_.stage_bytes);
  }
  float* staged_gradients(std::uint32_t worker) const {
    return reinterpret_cast<float*>(staged_ids(worker) + layout_.stage_rows);
  }

  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(mapping_.data() + offset);
  }
  std::size_t offset_of(const void* place) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(place) - mapping_.data());
  }

  // Allocates pages, so that touching them raises no signal. Throws Error(kSystem) if the system
  // has no memory for them.
  void allocate(std::size_t offset, std::size_t bytes) const;

 private:
  TableMemory(Fd file, Mapping mapping, const Settings& settings)
      : file_(std::move(file)), mapping_(std::move(mapping)), layout_(settings) {}

  const Fd file_;
  const Mapping mapping_;
  const TableLayout layout_;
};
using MemoryPointer = std::shared_ptr<TableMemory>;  // owners: the Rows and row servers of this
                                                     // process, and calls under way

// Finds the memory of a host's table.
//
// Thread safety: every method may be called from any thread.
class HostDirectory {
 public:
  // For `table` on the host of this process.
  HostDirectory(std::shared_ptr<Store> store, std::string table);

  // Returns the memory of the table, and adds its descriptor to the holders. Makes an empty table
  // if there is none, if no live process holds it open, or if it is still moving at the deadline.
  // Throws Error(kInvalid) if the table is open with other options.
  MemoryPointer find_or_make(const Settings& settings, Deadline deadline) const;

  // Implements SharedRowsOptions::next_memory (shared_rows.h).
  MemoryPointer next(const TableMemory& closed, MemoryPointer successor) const;

 private:
  struct Holder {  // a process may be listed several times, with different descriptors
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
