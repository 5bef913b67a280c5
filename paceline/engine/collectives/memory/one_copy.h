#pragma once

// Memory that a host has once for all ranks of a group (OneCopy), and the line that names the place
// of a write that should not have happened (WriteFaultRange).

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

// Says what a program wrote to when it wrote to memory that it may only read, or read memory that
// is closed to reading: a line on stderr with the name of the place, in front of the SIGSEGV that
// ends the process as without it. Handlers that were there before, such as the one that shows the
// stack to the launcher (crash_reporter.h), run after that line.
//
// Thread safety: any thread may make and destroy objects, and fault.
class WriteFaultRange {
 public:
  // `names`: in the order of their beginnings; each reaches to the next one. `who`: the rank, for
  // the line.
  WriteFaultRange(std::span<const std::byte> memory, const std::string& who,
                  std::vector<NamedRange> names);
  ~WriteFaultRange();
  WriteFaultRange(const WriteFaultRange&) = delete;
  WriteFaultRange& operator=(const WriteFaultRange&) = delete;

  struct Known;

 private:
  const std::unique_ptr<const Known> known_;
};

// Memory that a host has once, whatever the number of ranks, and that all ranks of a group see: in
// one view they write, in the other they only read. A module whose parameters lie in the second one
// needs no copy of its own, and nothing has to be gathered after a step.
//
// A write through the view that only reads ends the process with SIGSEGV, after a line on stderr
// that names what was written (WriteFaultRange). Memory that cannot be mapped a second time has one
// view, and nothing is protected.
//
// The user must order the writes: a collective before a write lets the others finish reading, one
// after it shows them what was written.
//
// Thread safety: Writing objects may come and go in any thread.
class OneCopy {
 public:
  // Collective. Zeroed; a page takes memory when it is first written to. `names`: of what lies
  // where, for the line about a write. Error on every rank: kUnsupported where the group's ranks
  // share no memory, kSystem when the host has not room for it; for `used`, where only so many
  // bytes are ever written at a time.
  OneCopy(ProcessGroup& group, std::size_t bytes, std::vector<NamedRange> names,
          std::optional<std::size_t> used = {});
  OneCopy(const OneCopy&) = delete;
  OneCopy& operator=(const OneCopy&) = delete;

  std::byte* data() const { return data_; }
  std::byte* read_only() const { return view_.begin(); }
  std::size_t bytes() const { return bytes_; }
  // For memory whose content comes and goes, in whole pages from `offset` on. A closed range ends
  // the process when it is read, after a line that names it; in this process alone.
  void close(std::size_t offset, std::size_t bytes) const;
  void open(std::size_t offset, std::size_t bytes) const;
  // Gives whole pages inside the range back to the system; every rank reads zeros there afterwards.
  void drop(std::size_t offset, std::size_t bytes) const;
  // Whether some copy of this process has this place in its view that is read. Any thread.
  static bool holds(const void* address);

  // While one lives, this process may write through read_only(). Requires: `copy` outlives it.
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
  // A second mapping of shared pages, or the first one where there is no other; in the list that
  // holds() looks through.
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
  struct Views;  // of the process

  static Views& views();
  void protect(std::size_t offset, std::size_t bytes, int protection) const;

  const SymmetricBuffer blocks_;  // of which that of rank 0 is used
  const std::size_t bytes_;
  std::byte* const data_;
  const View view_;
  std::unique_ptr<WriteFaultRange> fault_;
  mutable std::mutex mutex_;     // guards num_writers_, and makes protection follow it
  mutable int num_writers_ = 0;  // Writing objects
};

}  // namespace paceline
