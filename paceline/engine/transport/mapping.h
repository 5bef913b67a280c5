#pragma once

// A mapped range of pages, unmapped when it goes out of scope.

#include <cstddef>
#include <limits>
#include <utility>

#include "paceline/engine/core/fd.h"

namespace paceline {

// When pages come: all at once, so that a lack of memory is an error here and now; or one by one as
// they are touched, for large areas of which a part may be used. Of memory that ranks share,
// kOwnPresent brings each rank's own block at once, for all of them, and lets a rank map the
// others' as it touches them: for large blocks of which a rank may never see much.
class Pages {
 public:
  enum When { kPresent, kOwnPresent, kOnTouch };

  // NOLINTNEXTLINE(google-explicit-constructor): mostly there is no more to say.
  constexpr Pages(When when) : when_(when) {}
  // The mapping has that for so many bytes. The pages behind them are reserved at once, too, but
  // appear in the mapping as they are touched.
  constexpr Pages(When when, std::size_t bytes) : when_(when), bytes_(bytes) {}

  constexpr bool operator==(When when) const { return when_ == when; }
  constexpr std::size_t bytes_of(std::size_t all) const { return all < bytes_ ? all : bytes_; }

 private:
  When when_;
  std::size_t bytes_ = std::numeric_limits<std::size_t>::max();
};

// Brings pages that come on touch, before they are touched. False, with errno set, when there is
// not enough memory. Linux before 5.14 cannot: true, and to touch them may be SIGBUS.
bool bring_pages(std::byte* begin, std::size_t bytes);

class Mapping {
 public:
  Mapping() = default;
  // Zeroed memory of this process. Error(kSystem) with the size when there is none.
  static Mapping anonymous(std::size_t bytes, Pages pages);
  // The first `bytes` of a file, shared with all processes that map it; empty, with errno set, when
  // that fails. Requires: the file is that long. Pages that come on touch are not seen by forked
  // children, which would share them by mistake.
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

}  // namespace paceline
