#include "paceline/engine/transport/loopback/pipe.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace paceline {

std::size_t Pipe::push(std::span<const std::byte> head, std::span<const std::byte> rest) {
  const std::lock_guard lock(mutex_);
  make_room_for(std::min(size_ + head.size() + rest.size(), kMost));
  return append(head) + append(rest);
}

Pipe::Popped Pipe::pop(std::span<std::byte> into) {
  const std::lock_guard lock(mutex_);
  const Popped popped{copy_out(into), size_ == kMost};
  size_ -= popped.count;
  if (popped.count > 0) begin_ = (begin_ + popped.count) & (capacity_ - 1);
  return popped;
}

std::size_t Pipe::peek(std::span<std::byte> into) const {
  const std::lock_guard lock(mutex_);
  return copy_out(into);
}

bool Pipe::is_empty() const {
  const std::lock_guard lock(mutex_);
  return size_ == 0;
}

bool Pipe::is_full() const {
  const std::lock_guard lock(mutex_);
  return size_ == kMost;
}

void Pipe::make_room_for(std::size_t bytes) {
  if (bytes <= capacity_) return;
  const std::size_t capacity = std::bit_ceil(bytes);
  auto ring = std::make_unique_for_overwrite<std::byte[]>(capacity);
  copy_out({ring.get(), size_});
  ring_ = std::move(ring);
  capacity_ = capacity;
  begin_ = 0;
}

std::size_t Pipe::append(std::span<const std::byte> bytes) {
  const std::size_t count = std::min(bytes.size(), capacity_ - size_);
  if (count == 0) return 0;
  const std::size_t at = (begin_ + size_) & (capacity_ - 1);
  const std::size_t until_wrap = std::min(count, capacity_ - at);
  std::memcpy(ring_.get() + at, bytes.data(), until_wrap);
  if (count > until_wrap) std::memcpy(ring_.get(), bytes.data() + until_wrap, count - until_wrap);
  size_ += count;
  return count;
}

std::size_t Pipe::copy_out(std::span<std::byte> into) const {
  const std::size_t count = std::min(into.size(), size_);
  if (count == 0) return 0;
  const std::size_t until_wrap = std::min(count, capacity_ - begin_);
  std::memcpy(into.data(), ring_.get() + begin_, until_wrap);
  if (count > until_wrap) std::memcpy(into.data() + until_wrap, ring_.get(), count - until_wrap);
  return count;
}

}  // namespace paceline
