#pragma once

// Memory that the ranks of a host read and write in place: sealed files, their mappings, and sets
// of blocks with one block for each rank (host_memory.h allocates them).

#include <cstddef>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"

namespace paceline {

// Makes a file in memory, without pages yet. Its size is sealed: the process that made the file
// cannot shrink it later, which would raise SIGBUS in mappings of the file. Returns an empty Fd and
// sets errno on failure.
Fd make_sealed_file(std::size_t bytes);
// Whether a file that another process made has at least `bytes` bytes and cannot shrink.
bool is_sealed_file(const Fd& file, std::size_t bytes);

// When the pages of a mapping are allocated.
class Pages {
 public:
  enum When {
    kPresent,     // now, so that a lack of memory is reported at once
    kOwnPresent,  // shared blocks: each rank's own block now, mappings of the others' on first
                  // touch
    kOnTouch,     // on first touch, for large areas that may be used only in part
  };

  // NOLINTNEXTLINE(google-explicit-constructor): most callers pass just this value.
  constexpr Pages(When when) : when_(when) {}
  // `when` applies to the first `bytes` bytes. The pages after them are also reserved now, but are
  // mapped on first touch.
  constexpr Pages(When when, std::size_t bytes) : when_(when), bytes_(bytes) {}

  constexpr bool operator==(When when) const { return when_ == when; }
  constexpr std::size_t bytes_of(std::size_t all) const { return all < bytes_ ? all : bytes_; }

 private:
  When when_;
  std::size_t bytes_ = std::numeric_limits<std::size_t>::max();
};

// Allocates pages of a kOnTouch mapping before they are touched. Returns false and sets errno when
// there is not enough memory. On Linux before 5.14, the function does nothing and returns true, and
// touching the pages may raise SIGBUS.
bool populate_pages(std::byte* begin, std::size_t bytes);

// A mapped range of pages, unmapped when it goes out of scope.
class Mapping {
 public:
  Mapping() = default;
  // Maps zeroed memory of this process. Error(kSystem) with the size if memory is short.
  static Mapping anonymous(std::size_t bytes, Pages pages);
  // Maps the first `bytes` bytes of a file, shared with all processes that map it. Returns an empty
  // mapping and sets errno if that fails. Requires: the file is that long. Pages allocated on touch
  // are hidden from forked children, which would otherwise share them by mistake.
  static Mapping of_file(const Fd& file, std::size_t bytes, Pages pages);

  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Mapping(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// One block for each rank of this host, all of the same size, zeroed, page-aligned. A resource: the
// memory is unmapped when the last owner is destroyed. Owners are the group and the user's
// SymmetricBuffer or tensors.
class SharedBlocks {
 public:
  virtual ~SharedBlocks() = default;
  std::size_t bytes() const { return bytes_; }
  // The address of the block of `rank` in this process; null for a rank of another host.
  std::byte* of(int rank) const { return bases_[static_cast<std::size_t>(rank)]; }

 protected:
  std::size_t bytes_ = 0;
  std::vector<std::byte*> bases_;
};

// Makes shared blocks. Implemented for the processes of a host (ShmMemory) and for the threads of a
// process (LoopbackMemory).
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  // "shm" or "loopback".
  virtual const char* name() const = 0;
  // Collective: every rank of the host calls it, in the same order, with the same arguments.
  // Error(kSystem) with the needed size, on every rank of the host, if one of them cannot get the
  // memory. Touching the memory later raises no signal, except with Pages::kOnTouch.
  virtual std::shared_ptr<SharedBlocks> allocate(std::size_t bytes, Pages pages,
                                                 Deadline deadline) = 0;
};

}  // namespace paceline
