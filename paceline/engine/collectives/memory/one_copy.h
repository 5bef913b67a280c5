#pragma once

// Memory that exists once on a host for all ranks of a group (OneCopy), and the line on stderr that
// names the range of a forbidden access (AccessFaultRange).

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

struct NamedRange {
  std::size_t begin = 0;  // offset of its first byte
  std::string name;       // "parameter fc1.weight"
};

// Reports a forbidden access: a write to memory that is read-only, or a read of memory that is
// closed to reading. It prints a line with the name of the range on stderr, before the SIGSEGV ends
// the process as usual. A handler that was installed before, such as the one that shows the stack
// to the launcher (crash_reporter.h), runs after that line.
//
// Thread safety: any thread may create and destroy objects, and access the memory.
class AccessFaultRange {
 public:
  // `names` are in the order of their offsets; each range extends to the next one. `who` names the
  // rank in the line.
  AccessFaultRange(std::span<const std::byte> memory, const std::string& who,
                   std::vector<NamedRange> names);
  ~AccessFaultRange();
  AccessFaultRange(const AccessFaultRange&) = delete;
  AccessFaultRange& operator=(const AccessFaultRange&) = delete;

  struct Known;

 private:
  const std::unique_ptr<const Known> known_;
};

// Memory that exists once on a host, whatever the number of ranks, and that all ranks of a group
// map in two views: they write through one, and only read through the other. A module whose
// parameters lie in the read-only view needs no copy of its own, and nothing has to be gathered
// after a step.
//
// A write through the read-only view ends the process with SIGSEGV, after a line on stderr that
// names the range (AccessFaultRange). Memory that cannot be mapped a second time has only one view,
// which is not protected.
//
// The user must order the writes: a collective before a write lets the other ranks finish reading;
// a collective after it makes the written values visible to them.
//
// Thread safety: any thread may create and destroy Writing objects.
class OneCopy {
 public:
  // Collective. The memory is zeroed; a page takes memory when it is first written. `names` are the
  // names of ranges for the line about a forbidden access. Errors, on every rank: kUnsupported if
  // the group's ranks share no memory, kSystem if the host has no room for `used`, the most bytes
  // that are in use at a time (if empty, for `bytes`).
  OneCopy(ProcessGroup& group, std::size_t bytes, std::vector<NamedRange> names,
          std::optional<std::size_t> used = {});
  OneCopy(const OneCopy&) = delete;
  OneCopy& operator=(const OneCopy&) = delete;

  std::byte* data() const { return data_; }
  std::byte* read_only() const { return view_.begin(); }
  std::size_t bytes() const { return bytes_; }
  // close() and open() are for memory whose content is valid only at times; they apply to whole
  // pages from `offset` on. In this process, reading a closed range ends the process, after a line
  // that names the range; other processes are not affected.
  void close(std::size_t offset, std::size_t bytes) const;
  void open(std::size_t offset, std::size_t bytes) const;
  // Gives whole pages inside the range back to the system; every rank then reads them as zeros.
  void drop(std::size_t offset, std::size_t bytes) const;
  // Whether the address lies in the read-only view of a OneCopy of this process. May be called from
  // any thread.
  static bool holds(const void* address);

  // While such an object exists, this process may write through read_only(). Requires: `copy`
  // outlives the object.
  class Writing {
   public:
    explicit Writing(const OneCopy& copy);
    ~Writing();
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;

   private:
    const OneCopy& copy_;
  };

 private:
  // A second mapping of shared pages, or the first one if there is no second; registered in the
  // list that holds() searches.
  class View {
   public:
    View(std::byte* data, std::size_t bytes);
    ~View();
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    std::byte* begin() const { return begin_; }
    bool contains(const void* address) const;
    bool is_second() const { return begin_ != data_; }

   private:
    std::byte* const data_;
    const std::size_t bytes_;
    std::byte* begin_ = nullptr;
  };
  struct Views;  // the views of the process

  static Views& views();
  void protect(std::size_t offset, std::size_t bytes, int protection) const;

  const SymmetricBuffer blocks_;  // only the block of rank 0 is used
  const std::size_t bytes_;
  std::byte* const data_;
  const View view_;
  std::unique_ptr<AccessFaultRange> fault_;
  mutable std::mutex mutex_;     // guards num_writers_, and the page protection that depends on it
  mutable int num_writers_ = 0;  // number of Writing objects
};

}  // namespace paceline
