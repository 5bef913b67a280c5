#pragma once

// Memory that every rank of a group allocated with the same size and that, on one host, all of them
// map. Collectives on it read the peers' bytes in place, with no copy in or out.
//
// A value that shares ownership: the memory lives as long as any copy, also beyond its group.

#include <cstddef>
#include <memory>
#include <span>

namespace paceline {

class SymmetricBuffer {
 public:
  SymmetricBuffer() = default;
  // Memory of this rank's block; `owner` keeps it alive.
  SymmetricBuffer(std::byte* data, std::size_t bytes, std::shared_ptr<void> owner)
      : data_(data), bytes_(bytes), owner_(std::move(owner)) {}

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // Zeroed, page-aligned elements of type T.
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }
  const std::shared_ptr<void>& owner() const { return owner_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::shared_ptr<void> owner_;
};

}  // namespace paceline
