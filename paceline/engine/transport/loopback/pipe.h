#pragma once

// A stream of bytes from one thread of a process to another. It holds up to kMost bytes; the memory
// for them is taken as it is needed.
//
// Thread safety: all methods may be called from any thread.

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>

namespace paceline {

class Pipe {
 public:
  static constexpr std::size_t kMost = 256 << 10;

  // How many bytes, of the beginning of `head` and then `rest`, it took; 0 when it is full.
  std::size_t push(std::span<const std::byte> head, std::span<const std::byte> rest);
  struct Popped {
    std::size_t count = 0;  // of bytes; 0 when it was empty
    bool was_full = false;  // and a thread may wait to push
  };
  Popped pop(std::span<std::byte> into);
  // How many bytes it gave; they stay.
  std::size_t peek(std::span<std::byte> into) const;
  bool is_empty() const;
  bool is_full() const;

 private:
  // All require mutex_.
  void make_room_for(std::size_t bytes);
  std::size_t append(std::span<const std::byte> bytes);
  std::size_t copy_out(std::span<std::byte> into) const;

  mutable std::mutex mutex_;  // guards what is below
  std::unique_ptr<std::byte[]> ring_;
  std::size_t capacity_ = 0;  // 0 or a power of two
  std::size_t begin_ = 0, size_ = 0;
};

}  // namespace paceline
